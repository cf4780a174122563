"""Bounds of the bridge. Sizes are bytes, times are seconds."""

import dataclasses

MIB = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class Limits:
    """Every bound in one place. The defaults fit a gateway at its own defaults."""

    # A request of the gateway: an event of 1 MiB with its text twice, state, schemas of tools, configuration.
    body_bytes: int = 8 * MIB
    body_seconds: float = 30.0
    # Runs at once in one worker; one more gets 503 with `Retry-After`.
    live_runs: int = 256
    # The gateway fails a run after 60 s of silence.
    heartbeat_seconds: float = 15.0
    # Results between the runner and the socket. Full: the runner waits.
    queued_results: int = 64
    # A run works on for this time without a gateway, at most to its deadline.
    resume_seconds: float = 120.0
    # Results of a run for a resume. Full: sent ones are dropped; a run without a gateway fails on unsent ones.
    buffered_results: int = 10_000
    buffered_bytes: int = 8 * MIB
    # Ended runs of a worker whose last results a gateway may lack. Full: the oldest are dropped.
    ended_runs: int = 1024
    ended_bytes: int = 32 * MIB
    # A call that reached no gateway is repeated after this time, or after the resume.
    repeat_seconds: float = 1.0
    # A runner that reads `run_get` may end by itself for this long; the gateway's own grace is 5 s.
    cancel_grace_seconds: float = 2.0
    # `asyncio.wait_for` can swallow a cancel, so it is repeated after this time, this often.
    cancel_again_seconds: float = 1.5
    cancel_attempts: int = 5
    # The gateway ends a run at its deadline as `timeout`; the bridge does so itself after this time.
    deadline_grace_seconds: float = 1.0
    # Live runs end as `runner.shutdown` within this time once the bridge stops.
    stop_seconds: float = 5.0
    # One line of a result stream; `runtime.metadata.limits.line_bytes` of the context wins.
    line_bytes: int = 262_144
    # One answer of the host API, and one line of its streams.
    answer_bytes: int = 16 * MIB
    # Files of one event that are read back into its input.
    inlined_bytes: int = 32 * MIB
    inlined_files: int = 32
    # Parts of a message that are larger become artifacts.
    part_bytes: int = 65_536
    # Pages of storage keys that one SDK call follows.
    key_pages: int = 100
    # Time for a plugin to load, and plugins that load at once. Each takes a core for a few seconds.
    load_seconds: float = 60.0
    concurrent_starts: int = 4
    # The bridge listens after this time once a plugin is up; the others join when they are.
    ready_seconds: float = 10.0
    # A worker that ended is started again after this time, doubled up to the longest.
    restart_seconds: float = 1.0
    longest_restart_seconds: float = 30.0
    # One call of a plugin's tool by MCP, and calls at once.
    tool_seconds: float = 60.0
    tool_calls: int = 32
    # A request by MCP, and one answer of a tool.
    tool_bytes: int = 4 * MIB


LIMITS = Limits()
