"""Streamlit in this process: how it is set, served and stopped."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from traceback import format_exception

import uvicorn
from streamlit import config
from streamlit.runtime.pages_manager import PagesManager
from streamlit.starlette import App

from decodewatch.dashboard import settings as active
from decodewatch.dashboard.database import check_url
from decodewatch.dashboard.settings import DashboardSettings
from decodewatch.shared import lifecycle, logs
from decodewatch.shared.cli import EXIT_FAILURE
from decodewatch.shared.errors import DecodewatchError, SettingsError, shown

_log = logs.get(__name__)
_SCRIPT = Path(__file__).with_name("app.py")
STOP_WITHIN_S = 3
"""How long open pages may take to say goodbye; then their connections are cut."""

_OPTIONS = {
    # Nothing leaves the machine: no usage figures, no look-up of the address that others see.
    "browser.gatherUsageStats": False,
    "server.headless": True,
    "logger.hideWelcomeMessage": True,
    "server.fileWatcherType": "none",
    "server.runOnSave": False,
    "client.toolbarMode": "minimal",
    # A traceback is for the log, not for whoever looks.
    "client.showErrorDetails": "none",
    "client.showErrorLinks": False,
    # Both, so that Streamlit goes on to follow the viewer's choice of light or dark.
    "theme.light.primaryColor": "#2878b5",
    "theme.dark.primaryColor": "#4aa3d9",
    "theme.light.paddingTop": "1rem",
    "theme.dark.paddingTop": "1rem",
    "theme.light.paddingBottom": "2rem",
    "theme.dark.paddingBottom": "2rem",
}


class ServerError(DecodewatchError):
    """The dashboard cannot be served."""


def check_host(host: str) -> None:
    """Raise SettingsError for an address that others can reach: there is no sign-in yet."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"listen_host: {shown(host)}: {error}; accepted is an address of this machine"
        ) from None
    if not all(ipaddress.ip_address(each[4][0]).is_loopback for each in found):
        raise SettingsError(
            f"listen_host: {shown(host)} lets others in, and the dashboard has no sign-in yet; "
            "accepted is a loopback address such as 127.0.0.1. From elsewhere: `ssh -L "
            "8501:127.0.0.1:8501 THIS-MACHINE`, or a reverse proxy on this machine that signs "
            "people in"
        )


def serve(settings: DashboardSettings) -> int:
    """Serve the pages until SIGTERM or SIGINT; the exit status.

    Raises SettingsError where the settings are wrong, ServerError where the port is taken.
    """
    check_host(settings.listen_host)
    url = check_url(settings.database_url())
    active.activate(settings)
    for name, value in _OPTIONS.items():
        config.set_option(name, value)
    # By an old convention Streamlit takes a folder `pages` for scripts, until it has seen
    # `st.navigation` once: whoever opened another page than the first one would see nothing.
    PagesManager.uses_pages_directory = False
    config.set_option("server.address", settings.listen_host)
    config.set_option("server.port", settings.listen_port)
    # uvicorn hands on the signal that ended it; from then on it only says that we are stopping.
    lifecycle.Stop().install()
    with _listener(settings) as listener:
        address = _address(listener)
        _log.info("dashboard starting", database=url.render_as_string(hide_password=True))
        server = uvicorn.Server(_configuration(address))
        _take_over_logs()
        asyncio.run(server.serve(sockets=[listener]))
    _log.info("dashboard stopped")
    return 0 if server.started else EXIT_FAILURE


def _listener(settings: DashboardSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    place = settings.listen_host, settings.listen_port
    try:
        return socket.create_server(place, family=family)
    except OSError as error:
        raise ServerError(
            f"listen_host {settings.listen_host}, listen_port {settings.listen_port}: "
            f"{error.strerror}; accepted is an address of this machine with a free port"
        ) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _configuration(address: str) -> uvicorn.Config:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        _take_over_logs()  # again: Streamlit has made more loggers since
        # The socket listens already: whoever comes before this waits in its queue.
        _log.info("dashboard ready", address=address)
        lifecycle.notify("READY=1")
        yield

    return uvicorn.Config(
        App(_SCRIPT, lifespan=lifespan, on_script_error=_log_error),
        ws="websockets-sansio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_WITHIN_S,
    )


def _take_over_logs() -> None:
    """Let Streamlit and uvicorn log through this process's log, and only what matters."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("streamlit", "uvicorn"):
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.WARNING)


def _log_error(error: Exception) -> None:
    """A page failed: the viewer sees a general message, the log has it all."""
    _log.error("page failed", error=type(error).__name__, trace="".join(format_exception(error)))
