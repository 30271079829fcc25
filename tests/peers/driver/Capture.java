package peers;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Sends what a thread and its children print to that thread's own buffer, and all else to stderr.
 *
 * <p>Standard output belongs to the protocol; the admin tool prints its answers.
 */
final class Capture {
    private static final InheritableThreadLocal<ByteArrayOutputStream> OUT = new InheritableThreadLocal<>();
    private static final InheritableThreadLocal<ByteArrayOutputStream> ERR = new InheritableThreadLocal<>();

    private Capture() {
    }

    static void install() {
        OutputStream stderr = System.err;
        System.setOut(new PrintStream(new Router(OUT, stderr), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Router(ERR, stderr), true, StandardCharsets.UTF_8));
    }

    /** Runs the task and returns {stdout, stderr}. */
    static String[] run(Driver.Op task) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        OUT.set(out);
        ERR.set(err);
        try {
            task.run(null);
        } finally {
            OUT.remove();
            ERR.remove();
        }
        return new String[] {out.toString(StandardCharsets.UTF_8), err.toString(StandardCharsets.UTF_8)};
    }

    private static final class Router extends OutputStream {
        private final InheritableThreadLocal<ByteArrayOutputStream> local;
        private final OutputStream otherwise;

        Router(InheritableThreadLocal<ByteArrayOutputStream> local, OutputStream otherwise) {
            this.local = local;
            this.otherwise = otherwise;
        }

        private OutputStream chosen() {
            OutputStream mine = local.get();
            return mine == null ? otherwise : mine;
        }

        @Override
        public void write(int one) throws java.io.IOException {
            chosen().write(one);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws java.io.IOException {
            chosen().write(bytes, offset, length);
        }

        @Override
        public void flush() throws java.io.IOException {
            chosen().flush();
        }
    }
}
