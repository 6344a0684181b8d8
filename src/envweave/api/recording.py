"""The options `record=` and `forkable=`: what `make` and its kin keep of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from envweave.api.options import flag
from envweave.registry import EnvSpec

if TYPE_CHECKING:
    from envweave.environment import Interface
    from envweave.recording.writer import EventWriter, RunWriter
    from envweave.vector.transport import AsyncTransport, BatchTransport, Transport
    from envweave.wire.description import Description


@final
class RecordOption:
    """Records what is made of a recipe, if the caller passed `record=`.

    Args:
        record: The caller's option.
        transform: The caller's transform.
        forkable: Whether to keep the actions of the running episode, so that it can be forked.

    Raises:
        OptionError: `record` is not a path.
    """

    def __init__(self, record: Any, transform: Any = None, *, forkable: bool = False) -> None:
        self._directory: Path | None = None
        self._transform = transform
        self.forkable = flag("forkable", forkable)
        if record is not None:
            from envweave.recording.writer import read_directory

            self._directory = read_directory(record)

    def open(
        self, described: Any, spec: EnvSpec, kwargs: Mapping[str, Any], backend: str
    ) -> RunWriter | None:
        """Open a file for environments with this description; `None` without `record=`.

        Raises:
            RecordingError: It cannot be made.
        """
        if self._directory is None:
            return None
        from envweave.recording.events import EventLines
        from envweave.recording.header import description_of, header_of
        from envweave.recording.writer import RunWriter

        interface: Interface = described.interface
        description = description_of(spec.id, interface, described.tasks)
        header = header_of(spec, kwargs, description, backend=backend, transform=self._transform)
        lines = EventLines(self._directory, header, interface.possible_agents)
        return RunWriter(self._directory, lines)

    def wrap(
        self, transport: Transport, spec: EnvSpec, kwargs: Mapping[str, Any], backend: str
    ) -> Transport:
        """Return the transport of an `Env`, recorded if that was asked for."""
        try:
            writer = self.open(transport, spec, kwargs, backend)
        except BaseException:
            transport.close()
            raise
        if writer is None and not self.forkable:
            return transport
        from envweave.recording.recorder import RecordedTransport

        return RecordedTransport(transport, self._logged(writer))

    def wrap_async(
        self, transport: AsyncTransport, spec: EnvSpec, kwargs: Mapping[str, Any], backend: str
    ) -> AsyncTransport:
        """Return the transport of an `AsyncEnv`, recorded if that was asked for."""
        writer = self.open(transport, spec, kwargs, backend)
        if writer is None and not self.forkable:
            return transport
        from envweave.recording.recorder import RecordedAsyncTransport

        return RecordedAsyncTransport(transport, self._logged(writer))

    def _logged(self, writer: RunWriter | None) -> EventWriter:
        """Return what takes the events: the writer, a log of the running episode, or both."""
        from envweave.recording.episode_log import EpisodeLog

        if writer is not None and not self.forkable:
            return writer
        return EpisodeLog(writer)

    def wrap_batch(
        self,
        transport: BatchTransport,
        num_envs: int,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        backend: str,
    ) -> BatchTransport:
        """Return the transport of a `VectorEnv`, recorded or logged if that was asked for."""
        try:
            writer = self.open(transport, spec, kwargs, backend)
        except BaseException:
            transport.close()
            raise
        if writer is None and not self.forkable:
            return transport
        from envweave.vector.recorded import RecordedBatchTransport

        return RecordedBatchTransport(transport, writer, num_envs, is_logged=self.forkable)


def open_served(
    directory: Path, spec: EnvSpec, kwargs: Mapping[str, Any], description: Description
) -> RunWriter:
    """Open the recording of a server.

    Raises:
        RecordingError: It cannot be made.
    """
    from envweave.recording.events import EventLines
    from envweave.recording.header import header_of
    from envweave.recording.writer import RunWriter

    header = header_of(spec, kwargs, description, backend="server", transform=spec.transform)
    return RunWriter(directory, EventLines(directory, header, description.possible_agents))
