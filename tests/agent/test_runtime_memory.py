"""What the samples of a real runtime say of its memory, through the real agent."""

import time
from pathlib import Path

from support.application import AgentProcess, Application
from support.spooled import records

from decodewatch.shared.records import Sample

MIB = 1 << 20


def test_samples_of_a_runtime_have_its_memory_in_every_account(tmp_path: Path) -> None:
    quick = {"sample_interval_s": 0.2, "report_interval_s": 1, "idle_interval_s": 1}
    with AgentProcess(tmp_path, **quick) as agent:
        with Application(agent.socket) as application:
            application.hello()
            runtime = application.hear()["runtime"]
            application.allocate(32 * MIB)
            assert application.hear() == {"type": "allocated"}
            application.begin("t1")
            time.sleep(1.5)  # a sample interval at least
        assert agent.stop()[0] == 0
    samples = [one for one in records(agent.state, Sample) if one.runtime == runtime]
    assert samples
    values, unknown = samples[0].values, samples[0].unknown or {}
    lowest = {
        name: value[1] for name, value in values.items() if not isinstance(value, int | float)
    }
    assert lowest["runtime_rss_anon_bytes"] <= lowest["runtime_pss_bytes"]
    assert "runtime_rss_shmem_bytes" in lowest
    assert "runtime_private_bytes" in lowest
    assert unknown["runtime_gpu_bytes"] == "absent", "nothing of it is on a GPU"
    assert {"cgroup_memory_limit_hits", "cgroup_cpu_throttled_microseconds"} <= (
        values.keys() | unknown.keys()
    )
