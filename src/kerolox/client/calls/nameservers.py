"""Choice of the name server for a request. Name servers are independent of each other."""

from __future__ import annotations

from kerolox.client.calls.steps import Ask, Steps
from kerolox.client.errors import NameServerStarting, NoNameServer, failure
from kerolox.errors import ConnectFailed, ConnectionLost, RequestFailed, RequestTimeout
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header

# Errors of requests that no name server answers.
UNREACHABLE = (ConnectFailed, ConnectionLost, RequestTimeout, NoNameServer)


class NameServerList:
    """Name servers of one cluster, in the order of requests."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", *, doubtful: bool = False
    ) -> Steps[Command]:
        """Ask the name servers in turn until one answers; that one is asked first from then on.

        Raises a subclass of RequestFailed for an error response. A name server that has just started and has
        no brokers yet is skipped. ``doubtful``: the caller knows that the topic exists, so after "no such
        topic" the other name servers are asked, too: the broker may not be registered yet.
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
        """Send a change to every name server: they do not replicate."""
        for address in list(self.addresses):
            answer = yield Ask(code, header, body, address)
            if answer.code:
                raise failure(answer, address=address, code=code)

    def prefer_another(self) -> None:
        """Move the first name server, whose data is incomplete, to the end."""
        self.addresses.append(self.addresses.pop(0))

    def _prefer(self, address: str) -> None:
        if address in self.addresses:  # the list may have changed during the request
            self.addresses.remove(address)
            self.addresses.insert(0, address)
