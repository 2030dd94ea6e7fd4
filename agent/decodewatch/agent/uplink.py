"""The uplink: brings what is in the spool to a collector, and its acknowledgements back.

Nothing here trusts the broker to keep a message. A batch stays in the spool until a collector says
that it has committed it, and is sent again when that does not come in time: by itself where others
are acknowledged, else one batch is tried again and again, ever more slowly, until somebody answers.
"""

import random as randomness
import time
from collections.abc import Callable
from dataclasses import dataclass

from decodewatch.agent.connection import Connection, Sending
from decodewatch.agent.spool.spool import Spool, SpoolError
from decodewatch.shared import logs
from decodewatch.shared.broker import BrokerSettings
from decodewatch.shared.errors import SettingsError, WireError
from decodewatch.shared.wire import (
    MAX_RANGES,
    Acknowledged,
    Clock,
    Status,
    decode_ack,
    encode_status,
    topic,
)

log = logs.get(__name__)

WINDOW = 32
"""Batches that wait for a collector's acknowledgement at once, at most."""
WINDOW_BYTES = 256 * 1024
"""Bytes that wait for the broker's confirmation at once, about: paho holds them in memory twice."""
RESEND_S = (3.0, 60.0)
"""The first and the longest time after which a batch without acknowledgement is sent again."""
RECONNECT_S = (0.5, 30.0)
"""The first and the longest pause before a new connection."""
SILENCE_S = (60.0, 900.0)
"""So long without any acknowledgement, though some are due, and the connection is made anew: a
broker can be alive and pass nothing on. The first and the longest time."""
SETTLED_S = 60.0
"""A connection that lived so long was a good one: the next pause is the first again."""
_TICK_S = 1.0
_READ = 8
_ACKNOWLEDGEMENTS = 8
"""Payloads of acknowledgements that one tick reads, fewer where they are long."""


@dataclass(slots=True)
class _Sent:
    """A batch that was published and not acknowledged."""

    stream: str
    number: int
    size: int
    at: float
    due: float
    attempts: int
    sending: Sending


class _Backoff:
    """Times that grow from a first to a longest, jittered so that a fleet does not move as one."""

    def __init__(self, bounds: tuple[float, float], random: randomness.Random) -> None:
        self._first, self._longest = bounds
        self._random = random
        self._next = self._first

    def take(self) -> float:
        """The time to wait now; the one after it is twice as long."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        return seconds * self._random.uniform(0.75, 1.25)

    def reset(self) -> None:
        """Begin again with the first."""
        self._next = self._first


class Uplink:
    """Used by the agent's main loop alone; `wake` is called from another thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        device: str,
        agent_version: str,
        boot: str,
        spool: Spool,
        wake: Callable[[], None],
        clock: Callable[[], Clock],
        monotonic: Callable[[], float] = time.monotonic,
        random: randomness.Random | None = None,
    ) -> None:
        """`wake` makes the main loop call `tick` soon; `monotonic` counts seconds."""
        self._settings = settings
        self._device = device
        self._agent_version = agent_version
        self._boot = boot
        self._spool = spool
        self._wake = wake
        self._clock = clock
        self._monotonic = monotonic
        random = random or randomness.Random()
        self._random = random
        self._pause = _Backoff(RECONNECT_S, random)
        self._probe = _Backoff(RESEND_S, random)
        self._patience = _Backoff(SILENCE_S, random)
        self._connection: Connection | None = None
        self._announced = False
        self._number = 0
        self._connect_at = 0.0
        self._connected_at = 0.0
        # By place in the spool, in the order of their making.
        self._under_way: dict[int, _Sent] = {}
        self._after: int | None = None
        self._window = 1
        self._answered_at = 0.0
        self._silent_until = 0.0

    @property
    def connected(self) -> bool:
        """Whether the broker has let us in, as far as is known."""
        connection = self._connection
        return connection is not None and connection.accepted and not connection.ended

    def start(self) -> None:
        """Connect in the background, for as long as it takes.

        Raises SettingsError where a password, certificate or key file cannot be used.
        """
        self._connect(self._monotonic())

    def tick(self) -> float:
        """Do what is due; the seconds until it wants to be called again, unless it wakes.

        Raises nothing that the network or the spool can do.
        """
        now = self._monotonic()
        connection = self._connection
        if connection is not None and connection.ended:
            self._take_last(connection)
            self._lost(connection, now)
        elif connection is not None and connection.accepted and not connection.closing:
            try:
                self._take_acknowledgements(connection, now)
                self._send(connection, now)
            except SpoolError as error:
                log.error("spool not usable, nothing is sent", every=60, reason=str(error))
        elif connection is None and now >= self._connect_at:
            try:
                self._connect(now)
            except SettingsError as error:
                # It was good at the start: somebody is changing it, or the disk is going.
                log.error("cannot connect", every=600, reason=str(error))
                self._connect_at = now + self._pause.take()
        return self._seconds_to_wait(now)

    def stop(self, seconds: float) -> None:
        """Say goodbye, disconnect and end the thread, within about so long."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        deadline = self._monotonic() + seconds
        if connection.accepted and not connection.ended:
            self._take_last(connection)
            sending = connection.publish(self._topic("status"), self._status(False), retain=True)
            # Half of the time for the broker's answer, the rest for the thread to end.
            answer_by = deadline - seconds / 2
            if sending is not None and self._confirmed(connection, sending, answer_by):
                connection.close(max(deadline - self._monotonic(), 0.1))
            else:
                connection.drop()  # then the last will says it
        else:
            connection.drop()
        if not connection.join(max(deadline - self._monotonic(), 0.1)):
            log.warning("connection did not end in time", broker=self._settings.broker_host)

    # The connection.

    def _connect(self, now: float) -> None:
        connection = Connection(self._settings, self._device, self._wake)
        self._number = self._spool.next_connection()
        self._announced = False
        self._connection = connection
        connection.start(self._topic("status"), self._status(None))

    def _announce(self, connection: Connection, now: float) -> None:
        """The first thing on a new connection: hear acknowledgements, say that we are here."""
        self._announced = True
        self._connected_at = self._answered_at = now
        self._silent_until = now + self._patience.take()
        self._under_way.clear()
        self._after = None
        self._window = 1
        connection.subscribe(self._topic("ack"))
        connection.publish(self._topic("status"), self._status(True), retain=True)
        log.info("connected", broker=self._settings.broker_host, connection=self._number)

    def _lost(self, connection: Connection, now: float) -> None:
        self._connection = None
        if self._announced and now - self._connected_at >= SETTLED_S:
            self._pause.reset()
        pause = self._pause.take()
        self._connect_at = now + pause
        log.warning(
            "connection lost" if self._announced else "no connection",
            every=60,
            broker=f"{self._settings.broker_host}:{self._settings.broker_port}",
            reason=connection.reason or "not known",
            again_s=round(pause, 1),
        )

    def _status(self, online: bool | None) -> bytes:
        """What to say of ourselves; None for the last will, whose moment nobody knows."""
        clock = None if online is None else self._clock()
        return encode_status(
            Status(
                device=self._device,
                online=bool(online),
                connection=self._number,
                agent_version=self._agent_version,
                boot=self._boot,
                clock=clock,
            )
        )

    def _topic(self, leaf: str) -> str:
        return topic(self._device, leaf)

    # Batches and acknowledgements.

    def _take_acknowledgements(self, connection: Connection, now: float) -> None:
        heard = _merged(self._hear(connection))
        if not heard:
            return
        self._spool.acknowledge(heard)
        done = [place for place, sent in self._under_way.items() if _covers(heard, sent)]
        for place in done:
            del self._under_way[place]
        # Also where it was for batches that are not under way any more: somebody is there.
        self._answered_at = now
        self._window = min(self._window + max(len(done), 1), WINDOW)
        for backoff in (self._probe, self._pause, self._patience):
            backoff.reset()
        self._silent_until = now + self._patience.take()

    def _hear(self, connection: Connection) -> list[Acknowledged]:
        """Some of what was acknowledged; never more than the main loop has time for."""
        heard: list[Acknowledged] = []
        for _ in range(_ACKNOWLEDGEMENTS):
            payload = connection.acknowledgements.take()
            if payload is None:
                break
            try:
                heard += decode_ack(payload)
            except WireError as error:
                log.warning("acknowledgement not understood", every=600, reason=str(error))
            if sum(len(item.ranges) for item in heard) >= MAX_RANGES:
                break
        return heard

    def _take_last(self, connection: Connection) -> None:
        try:
            self._take_acknowledgements(connection, self._monotonic())
        except SpoolError as error:
            log.warning("last acknowledgements not stored", reason=str(error))

    def _send(self, connection: Connection, now: float) -> None:
        if not self._announced:
            self._announce(connection, now)
        if not self._under_way:
            self._silent_until = max(self._silent_until, now + SILENCE_S[0])
        elif now >= self._silent_until:
            log.warning("no acknowledgements, connecting anew", every=600, connection=self._number)
            connection.close()
            return
        self._resend(connection, now)
        self._fill(connection, now)

    def _resend(self, connection: Connection, now: float) -> None:
        """Send again what is due and what the broker has taken: the rest is still on its way."""
        for place, sent in list(self._under_way.items()):
            if now < sent.due or not sent.sending.confirmed:
                continue
            if self._answered_at > sent.at:
                sent.attempts += 1
                self._send_again(connection, place, sent, now, self._due_in(sent.attempts))
                continue
            # Nobody has answered since: the others would meet the same. Only the oldest is tried,
            # and the rest read from the spool again when somebody answers.
            place, sent = next(iter(self._under_way.items()))
            self._under_way = {place: sent}
            self._after = place
            self._window = 1
            self._send_again(connection, place, sent, now, self._probe.take())
            return

    def _send_again(
        self, connection: Connection, place: int, sent: _Sent, now: float, seconds: float
    ) -> None:
        """`seconds` until it is due the next time, also where it could not be sent now."""
        sent.due = now + seconds
        stored = self._spool.get(place)
        if stored is None:
            del self._under_way[place]
            return
        sending = connection.publish(self._topic("up"), stored.payload)
        if sending is not None:
            sent.sending = sending
            sent.at = now

    def _fill(self, connection: Connection, now: float) -> None:
        """Send the next batches from the spool, as many as the window and the broker allow."""
        while True:
            free = min(self._window - len(self._under_way), _READ)
            unconfirmed = sum(
                sent.size for sent in self._under_way.values() if not sent.sending.confirmed
            )
            if free <= 0 or unconfirmed >= WINDOW_BYTES:
                return
            batches = self._spool.oldest(self._after, free)
            for stored in batches:
                sending = connection.publish(self._topic("up"), stored.payload)
                if sending is None:
                    return
                self._under_way[stored.place] = _Sent(
                    stored.stream,
                    stored.number,
                    len(stored.payload),
                    at=now,
                    due=now + self._due_in(0),
                    attempts=0,
                    sending=sending,
                )
                self._after = stored.place
            if not batches:
                return

    def _due_in(self, attempts: int) -> float:
        first, longest = RESEND_S
        return min(first * 2.0 ** min(attempts, 16), longest) * self._random.uniform(0.75, 1.25)

    def _seconds_to_wait(self, now: float) -> float:
        if self._connection is None:
            return max(self._connect_at - now, 0.0)
        if self._connection.acknowledgements and self.connected and not self._connection.closing:
            return 0.0
        # What the broker has not confirmed waits for that, which wakes the main loop.
        due = (sent.due for sent in self._under_way.values() if sent.sending.confirmed)
        return min(max(min(due, default=now + _TICK_S) - now, 0.0), _TICK_S)

    def _confirmed(self, connection: Connection, sending: Sending, deadline: float) -> bool:
        """Wait for the broker's confirmation of one message."""
        while not sending.confirmed:
            if connection.ended or self._monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True


def _merged(heard: list[Acknowledged]) -> list[Acknowledged]:
    """The same, each stream once, its ranges in rising order and those that meet as one."""
    streams: dict[str, list[tuple[int, int]]] = {}
    for item in heard:
        streams.setdefault(item.stream, []).extend(item.ranges)
    merged = []
    for stream, ranges in streams.items():
        found: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if found and first <= found[-1][1] + 1:
                found[-1] = found[-1][0], max(found[-1][1], last)
            else:
                found.append((first, last))
        if found:
            merged.append(Acknowledged(stream, tuple(found)))
    return merged


def _covers(heard: list[Acknowledged], sent: _Sent) -> bool:
    return any(
        item.stream == sent.stream
        and any(first <= sent.number <= last for first, last in item.ranges)
        for item in heard
    )
