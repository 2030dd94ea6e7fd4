"""How much the spool may take: its own limit, and what a full disk leaves it."""

import sqlite3
from collections.abc import Callable, Iterator

from decodewatch.agent.spool.database import PAGE_BYTES, Database, is_full, is_io
from decodewatch.agent.spool.files import SpoolFiles
from decodewatch.shared import logs

log = logs.get(__name__)

_SLACK_PAGES = 256


class Room:
    """The transactions of one database, under a limit and on a disk that may be full.

    Where the disk is full the ballast goes, and the database stays as large as it is: from then on
    what comes in must fit where something went, until the disk has room again.
    """

    @staticmethod
    def open_database(files: SpoolFiles) -> Database:
        """Open the file, for which a full disk may first need the ballast's blocks."""
        try:
            return Database(files.file)
        except sqlite3.Error as error:
            if not is_full(error) and not is_io(error):
                raise
            if not files.drop_aside() and not files.drop_ballast():
                raise
        return Room.open_database(files)

    def __init__(
        self,
        database: Database,
        files: SpoolFiles,
        limit_pages: int,
        evict: Callable[[int], None],
    ) -> None:
        """`evict` makes room for so many pages inside the database, or raises SpoolError."""
        self._database = database
        self._files = files
        self._limit_pages = limit_pages
        self._evict = evict
        self._evicting = False
        self._tight_pages: int | None = None

    @property
    def pages(self) -> int:
        """The most pages that may hold something now."""
        if self._tight_pages is None:
            return self._limit_pages
        return min(self._limit_pages, self._tight_pages)

    @property
    def tight(self) -> bool:
        """Whether the disk was full when last looked at."""
        return self._tight_pages is not None

    def fits(self, pages: int) -> bool:
        """Whether so many more pages may be used."""
        return self._database.used_pages() + pages <= self.pages

    def write(self, work: Callable[[], None], pages: int = 4) -> None:
        """One transaction, with another attempt after each thing that makes room on the disk."""
        last: sqlite3.Error | None = None
        for _ in self._attempts(pages):
            try:
                with self._database.transaction():
                    work()
            except sqlite3.Error as error:
                if not is_full(error) and not is_io(error):
                    raise
                last = error
            else:
                return
        assert last is not None
        raise last

    def _attempts(self, pages: int) -> Iterator[None]:
        yield
        # The log's pages go into the database, where there may be free ones, and it begins anew.
        self._database.checkpoint()
        yield
        if self._files.drop_aside():
            log.warning("disk full, corrupt spools removed", file=self._files.file)
            yield
        if self._files.drop_ballast():
            log.error("disk full, ballast removed", every=600, file=self._files.file)
        self.tighten()
        self._database.checkpoint()
        # To evict is to write: where even that finds no room, more of it will not either.
        if self._evicting:
            return
        self._evicting = True
        try:
            self._evict(pages)
        finally:
            self._evicting = False
        yield

    def tighten(self) -> None:
        """The disk is full: from now on the database may hardly grow."""
        self._tight_pages = self._database.pages() + self._files.spare_bytes() // PAGE_BYTES

    def loosen(self) -> None:
        """Let the database grow again where the disk has room."""
        if self.tight and self._files.has_room() and self._files.make_ballast():
            log.info("disk has room again", file=self._files.file)
            self._tight_pages = None

    def shrink(self) -> None:
        """Give free pages back to the disk, some at a time. Raises nothing: it can wait."""
        try:
            if not self.tight and self._database.free_pages() > 2 * _SLACK_PAGES:
                self._database.give_back(_SLACK_PAGES)
        except sqlite3.Error as error:
            log.warning("free pages not given back", every=3600, reason=str(error))
