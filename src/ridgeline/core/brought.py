"""Blocks of prompts that tiers have brought, until their requests start."""

from ridgeline.core.commands import BlocksFetched


class Brought:
    """Brought blocks by request id. `unused` gets the numbers of content that nobody takes."""

    def __init__(self, unused: list[int]) -> None:
        self._unused = unused
        self._fetched: dict[str, BlocksFetched] = {}

    def put(self, fetched: BlocksFetched) -> None:
        """Keeps it for its request."""
        self.drop(fetched.request_id)
        self._fetched[fetched.request_id] = fetched

    def pop(self, request_id: str) -> BlocksFetched | None:
        """Returns what a request that starts has; its first choice gets all."""
        return self._fetched.pop(request_id, None) if self._fetched else None

    def drop(self, request_id: str) -> None:
        """Gives up what a request has."""
        fetched = self.pop(request_id)
        if fetched is not None:
            self._unused += [number for *_, number in fetched.blocks]
