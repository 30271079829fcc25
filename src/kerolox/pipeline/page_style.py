"""Style sheet of the pages of audits, pipelines and the demo.

The colours (Okabe and Ito) are distinct for colour-blind readers, and lines also differ by their dashes.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{--bg:#fbfbfa;--paper:#fff;--ink:#1d2125;--soft:#5d6670;--line:#e1e4e8;--good:#1a7f4b;--goodbg:#e8f5ee;
--bad:#b3261e;--badbg:#fcebea;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#56b4e9;--c5:#e69f00;
--c6:#6a51a3;--c7:#7f6a54;--c8:#9aa3ad;--mark:#d55e0018}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--paper:#1b1f23;--ink:#e4e7ea;--soft:#9aa4ae;
--line:#30363c;--good:#58c48b;--goodbg:#16291f;--bad:#ff8a80;--badbg:#351a19;--c0:#4da6df;--c1:#ff8b4d;
--c2:#33c496;--c3:#e3a3c6;--c4:#9ad4f7;--c5:#f5bd4d;--c6:#b3a0e6;--c7:#bd9c80;--c8:#7c8690;--mark:#ff8b4d2e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1000px;margin:0 auto;padding:24px 16px 64px}
header{border-radius:10px;padding:20px 24px;border:1px solid var(--line)}
header.good{background:var(--goodbg)}header.bad{background:var(--badbg)}
header.good h1{color:var(--good)}header.bad h1{color:var(--bad)}
h1{font-size:30px;line-height:1.2;margin:0 0 8px}
h2{font-size:20px;margin:36px 0 8px}h3{font-size:16px;margin:22px 0 6px}
p{margin:6px 0}.kind{color:var(--soft);margin:0}.small{color:var(--soft);font-size:13px}
ul{margin:8px 0;padding-left:20px}.where{font-weight:600}.paths{list-style:none;padding:0}
a{color:inherit}.count{color:var(--bad);font-weight:400}
code{font:12.5px/1.4 ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
.at{white-space:nowrap;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;background:var(--paper)}
th,td{text-align:left;vertical-align:top;padding:6px 10px;border-bottom:1px solid var(--line);
font-size:13.5px;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.checks{width:auto}.yes{color:var(--good);font-weight:700}.no{color:var(--bad);font-weight:700}
.n{color:var(--soft)}
.next{border-left:3px solid var(--c0);padding-left:10px}
.chart{display:block;width:100%;height:auto;background:var(--paper);border:1px solid var(--line);
border-radius:8px}
.axis{font-size:11px;fill:var(--soft)}.grid{stroke:var(--line);fill:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px}
.key{display:inline-flex;align-items:center;gap:6px}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}
.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}.f8{fill:var(--c8)}
.l0,.l1,.l2,.l3{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.l1{stroke-dasharray:7 4}.l2{stroke-dasharray:2 4}
.mark{fill:var(--mark)}.said{font-size:12px;font-weight:600;fill:var(--c1)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(145px,1fr));gap:12px;margin:16px 0}
.tile{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:12px 16px}
.tile b{display:block;font-size:22px;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}
.l3{stroke:var(--c3);stroke-dasharray:12 5 2 5}
dt{font-weight:600;margin-top:8px}dd{margin:0 0 0 0;color:var(--soft)}
@media print{header,.chart{break-inside:avoid}}
""".replace("\n", "")
