"""The entry that Streamlit runs: which pages there are, and nothing else."""

import streamlit as st

from decodewatch.dashboard.pages import device, fleet
from decodewatch.dashboard.view import dress

dress()
st.navigation(
    [
        st.Page(fleet.page, title="Fleet", url_path="fleet", default=True),
        st.Page(device.page, title="Device", url_path="device"),
    ],
    position="top",
).run()
