"""The default database lies in the state folder, whatever that folder is called."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from decodewatch.collector import database as collecting
from decodewatch.collector import migrate
from decodewatch.dashboard import database as reading
from decodewatch.shared import tables
from decodewatch.shared.database import default_database


@pytest.mark.parametrize("name", ["plain", "a?b", "a%41b", "100%", "a#b", "ä ö", "a&b=c"])
def test_a_folder_of_any_name_holds_its_database(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    engine = collecting.open_engine(default_database(folder))
    migrate.upgrade(engine)
    engine.dispose()
    assert (folder / "decodewatch.db").is_file()
    assert [item.name for item in tmp_path.iterdir()] == [name]
    with reading.reading(default_database(folder)) as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.turn)).scalar() == 0
