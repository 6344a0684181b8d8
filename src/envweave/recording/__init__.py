"""Recordings: append-only logs of episodes, written as they happen and loaded lazily."""

from envweave.recording.reader import EpisodeSummary, RecordedRun, Recording, load

__all__ = ["EpisodeSummary", "RecordedRun", "Recording", "load"]
