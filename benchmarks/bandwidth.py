"""The measured bandwidth against a loop compiled for this machine: libc in threads must reach it.

    python benchmarks/bandwidth.py

Prints one JSON line: GB/s of reading and of copying (read and written bytes together), by
`decodewatch agent bandwidth` and by a C program with one thread, two and so on up to one a core,
both by their best of several; and the ratios, which are what to look at. Nothing to compare with
where there is no C compiler.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from decodewatch.agent.hardware import bandwidth

SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static size_t size;
static int threads, copying;
static char *memory;
static pthread_barrier_t barrier;
static volatile unsigned long sink;
static double best;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *work(void *argument) {
    long place = (long)argument;
    size_t part = size / threads / 4096 * 4096;
    char *from = memory + part * place;
    for (int round = 0; round < 12; round++) {
        pthread_barrier_wait(&barrier);
        double began = now();
        if (copying)
            memcpy(from + part / 2, from, part / 2);
        else {
            const unsigned long *words = (const unsigned long *)from;
            unsigned long all = 0;
            for (size_t at = 0; at < part / sizeof *words; at++) all |= words[at];
            sink += all;
        }
        pthread_barrier_wait(&barrier);
        double rate = (double)part * threads / (now() - began);
        if (!place && rate > best) best = rate;
    }
    return NULL;
}

int main(int count, char **words) {
    (void)count;
    size = (size_t)atol(words[1]);
    int most = atoi(words[2]);
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, size, MADV_HUGEPAGE);
    memset(memory, 1, size);
    for (copying = 0; copying < 2; copying++) {
        best = 0;
        for (threads = 1; threads <= most; threads++) {
            pthread_t started[256];
            pthread_barrier_init(&barrier, NULL, threads);
            for (long i = 0; i < threads; i++) pthread_create(started + i, NULL, work, (void *)i);
            for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
        }
        printf("%.0f\n", best);
    }
    return 0;
}
"""


def compiled(size: int, threads: int, folder: Path) -> list[float]:
    """Bytes a second of reading and copying by the C program."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("no C compiler (cc): nothing to compare with")
    source, program = folder / "loop.c", folder / "loop"
    source.write_text(SOURCE)
    flags = ["-O3", "-march=native", "-pthread"]
    subprocess.run([compiler, *flags, "-o", str(program), str(source)], check=True)
    done = subprocess.run(
        [str(program), str(size), str(threads)], check=True, capture_output=True, text=True
    )
    return [float(line) for line in done.stdout.split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    measured = bandwidth.measure(seconds)
    threads = max(measured.read.threads, measured.copy.threads, 2)
    with tempfile.TemporaryDirectory() as folder:
        read, copy = compiled(measured.buffer_bytes, threads, Path(folder))
    print(
        json.dumps(
            {
                "benchmark": "bandwidth",
                "read_gb_per_s": round(measured.read.bytes_per_second / 1e9, 2),
                "read_with": measured.read.routine,
                "read_threads": measured.read.threads,
                "read_compiled_gb_per_s": round(read / 1e9, 2),
                "read_ratio": round(measured.read.bytes_per_second / read, 3),
                "copy_gb_per_s": round(measured.copy.bytes_per_second / 1e9, 2),
                "copy_compiled_gb_per_s": round(copy / 1e9, 2),
                "copy_ratio": round(measured.copy.bytes_per_second / copy, 3),
                "buffer_mib": measured.buffer_bytes >> 20,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
