"""Stopping: by signal or by call, once, without locks that a signal could find held."""

import signal
import subprocess
import sys
import threading
import time

from decodewatch.shared.lifecycle import Stop


def test_a_wait_ends_when_another_thread_asks_to_stop() -> None:
    stop = Stop()
    assert not stop.wait(0.01)
    threading.Timer(0.05, stop.set).start()
    began = time.monotonic()
    assert stop.wait(10)
    assert time.monotonic() - began < 5
    assert stop.wait(10) and stop.is_set()  # and every wait after it


def test_asking_again_does_nothing() -> None:
    calls: list[int] = []
    stop = Stop(lambda: calls.append(1))
    stop.set()
    stop.set()
    assert calls == [1]


def test_a_storm_of_signals_stops_a_process_and_never_hangs_it() -> None:
    code = (
        "from decodewatch.shared.lifecycle import Stop\n"
        "stop = Stop().install()\nprint('ready', flush=True)\nstop.wait(60)\nprint('stopped')"
    )
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(20):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(10) in (0, -signal.SIGINT, -signal.SIGTERM)
        process.stdout.close()


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    code = (
        "import signal, threading, time\n"
        "from decodewatch.shared.lifecycle import Stop\n"
        "stop = Stop().install()\n"
        "def poke():\n"
        "    time.sleep(0.5)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=poke, daemon=True).start()\n"
        "print(stop.wait(None))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "True\n")
