"""Which name server to ask next, and what their answers mean. They do not know each other."""

from __future__ import annotations

from kerolox.client.calls.steps import Ask, Steps
from kerolox.client.errors import NameServerStarting, NoNameServer, failure
from kerolox.errors import ConnectFailed, ConnectionLost, RequestFailed, RequestTimeout
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header

# What is raised when no name server answers.
UNREACHABLE = (ConnectFailed, ConnectionLost, RequestTimeout, NoNameServer)


class NameServerList:
    """The name servers of one cluster, in the order they are asked in."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", *, doubtful: bool = False
    ) -> Steps[Command]:
        """Ask them in turn until one answers, which is then the first to be asked. Raises a kind of
        RequestFailed when the answer is an error.

        Instead of a server that has just started, and knows nothing yet, another is asked. ``doubtful``: the
        caller knows the topic, so one that does not know it has perhaps not heard of its broker yet, and the
        others are asked too.
        """
        failures: list[str] = []
        ignorant: RequestFailed | None = None
        for address in list(self.addresses):
            try:
                answer = yield Ask(code, header, body, address)
            except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
                if len(self.addresses) == 1:
                    raise
                failures.append(f"{address}: {error.__cause__ or error}")
                continue
            if answer.code == 0:
                if failures or ignorant is not None:
                    self._prefer(address)
                return answer
            refusal = failure(answer, address=address, code=code)
            unknown = doubtful and answer.code == ResponseCode.TOPIC_NOT_EXIST
            if not unknown and not isinstance(refusal, NameServerStarting):
                raise refusal
            ignorant = refusal
        if ignorant is not None:
            raise ignorant
        raise NoNameServer(f"no name server answered: {', '.join(failures)}. Is one running there?")

    def tell_all(self, code: int, header: Header | None = None, body: bytes = b"") -> Steps[None]:
        """What changes one of them has to be told to each."""
        for address in list(self.addresses):
            answer = yield Ask(code, header, body, address)
            if answer.code:
                raise failure(answer, address=address, code=code)

    def prefer_another(self) -> None:
        """The first one knows too little: it is asked last from now on."""
        self.addresses.append(self.addresses.pop(0))

    def _prefer(self, address: str) -> None:
        if address in self.addresses:  # they may have been changed while it was asked
            self.addresses.remove(address)
            self.addresses.insert(0, address)
