"""What a person looks at: Streamlit pages over the collector's database, which they only read.

`app.py` lists the pages; a page in `pages/` lays out; `queries.py` holds all SQL, `series.py` turns
rows into frames, `charts.py` frames into charts, `format.py` values into words.
"""
