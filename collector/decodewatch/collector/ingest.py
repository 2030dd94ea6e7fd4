"""From MQTT to the store: a thread that reads the network, a queue with a bound, one that writes.

Nothing is acknowledged before its commit, and nothing rests on the broker: what is lost between
here and a device, the device sends again. So a full queue needs no cleverness: reading stops, and
where it stays full, the collector leaves the broker until it has caught up, so that others of the
same shared subscription get what it cannot take.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from decodewatch.collector.link import Link, backoff
from decodewatch.collector.settings import CollectorSettings
from decodewatch.collector.storage.arrivals import Arrival, Delivery, Letter, Message, read
from decodewatch.collector.storage.store import RetryLater, Store, Tally, Written
from decodewatch.shared import logs

_log = logs.get(__name__)

RETRY_S = (0.1, 5.0)
DRAIN_S = 2.5
"""How long what is queued is still stored after the stop."""
REPORT_S = 60.0


class Ingest:
    """The two threads and the queue between them.

    `on_failure` is called, from a thread, where one ended that should not have: the process should
    end then.
    """

    def __init__(
        self, settings: CollectorSettings, store: Store, on_failure: Callable[[], None]
    ) -> None:
        """Nothing starts yet. Raises SettingsError where credentials or TLS files are wrong."""
        self._settings = settings
        self._store = store
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._stopped_at = 0.0
        self._queue: queue.Queue[Message] = queue.Queue(settings.queue_messages)
        self._link = Link(settings, self._queue)
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (("reader", self._link.run), ("writer", self._write))
        ]
        self._database_trouble: str | None = None
        self._total = Tally()

    def start(self) -> None:
        """Connect and store from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop reading, store and acknowledge for a few seconds what is queued, and leave."""
        self._stopped_at = time.monotonic()
        self._link.stop()
        self._stop.set()
        reader, writer = self._threads
        writer.join(DRAIN_S + 0.5)
        self._link.leave()
        reader.join(1.0)

    def troubles(self) -> list[str]:
        """Why nothing would be stored and acknowledged now; empty where it would."""
        ended = [f"thread {item.name} has ended" for item in self._threads if not item.is_alive()]
        found = [why for why in (self._link.trouble(), self._database_trouble) if why is not None]
        return ended + found

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # The other thread is of no use alone, and a new process starts from a known state.
            name = threading.current_thread().name
            _log.error("thread ended", thread=name, why=error, trace=traceback.format_exc())
            self._on_failure()

    def _write(self) -> None:
        reported = time.monotonic()
        while (group := self._next_group()) is not None:
            arrivals = [read(message) for message in group]
            written = self._store_patiently(arrivals)
            if written is not None:
                self._link.acknowledge(written)
                self._total.add(written.tally)
                _complain(arrivals)
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                self._report()
        self._report()

    def _next_group(self) -> list[Message] | None:
        """What to store in one transaction; None at the end."""
        while True:
            try:
                group = [self._queue.get(timeout=0.2)]
                break
            except queue.Empty:
                if self._stop.is_set():
                    return None
        ends = time.monotonic() + self._settings.group_wait_ms / 1000
        while len(group) < self._settings.group_messages:
            left = 0.0 if self._stop.is_set() else ends - time.monotonic()
            try:
                group.append(self._queue.get(timeout=max(left, 0.0)))
            except queue.Empty:
                break
        return None if self._late() else group

    def _late(self) -> bool:
        return self._stop.is_set() and time.monotonic() > self._stopped_at + DRAIN_S

    def _store_patiently(self, arrivals: Sequence[Arrival]) -> Written | None:
        """Store a group, however long the database is away; None where the stop comes first."""
        attempt = 0
        while not self._late():
            try:
                written = self._store.write(arrivals)
            except RetryLater as error:
                attempt += 1
                self._database_trouble = str(error)
                _log.error("not stored, trying again", every=30, why=error, attempt=attempt)
                self._stop.wait(backoff(attempt, RETRY_S))
            else:
                if attempt:
                    _log.info("database works again", attempts=attempt)
                self._database_trouble = None
                return written
        return None

    def _report(self) -> None:
        total = self._total
        if total != Tally():
            _log.info(
                "stored since the last report",
                batches=total.stored,
                records=total.records,
                duplicate=total.duplicate,
                refused=total.refused,
                dead_letters=total.letters,
                statuses=total.statuses,
            )
        self._total = Tally()


def _complain(arrivals: Sequence[Arrival]) -> None:
    """Log, now and then, what was put aside: its rows are in the table of dead letters."""
    for item in arrivals:
        if isinstance(item, Letter):
            _log.warning("dead letter", every=60, topic=item.topic, reason=item.short_reason)
        elif isinstance(item, Delivery) and item.received.refused:
            refused = item.received.refused
            device = item.received.batch.device
            _log.warning("records refused", every=60, device=device, n=len(refused), why=refused[0])
