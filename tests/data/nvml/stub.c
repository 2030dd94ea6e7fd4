/* A libnvidia-ml.so.1 for the real nvidia-ml-py, with the GPUs that $NVML_STUB names:

   card      one in a PC
   two       two, of which the first falls off the bus after a second
   thor      a Jetson Thor, which refuses much
   nvgpu     a Jetson Orin, which knows nothing and says 0
   hang      a card whose driver does not return
   lost      a card that fell off the bus
   mismatch  a driver that was updated without a restart

   Compiled with -DOLD it is that of a driver before the newest functions. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, LOST = 15, MISMATCH = 18 };

static time_t began;

static int is(const char *name)
{
    const char *stub = getenv("NVML_STUB");
    return stub != NULL && strcmp(stub, name) == 0;
}

static int is_first(void *gpu) { return gpu == (void *)1; }

/* What a function that all GPUs have returns. */
static int asked(void *gpu)
{
    if (is("hang"))
        pause();
    if (is("lost") || (is("two") && is_first(gpu) && time(NULL) > began + 1))
        return LOST;
    return is("nvgpu") ? NOT_SUPPORTED : OK;
}

/* And one that a Thor has not. */
static int asked_of_card(void *gpu) { return is("thor") ? NOT_SUPPORTED : asked(gpu); }

int nvmlInitWithFlags(unsigned flags)
{
    began = time(NULL);
    return is("mismatch") ? MISMATCH : OK;
}

const char *nvmlErrorString(int code) { return "?"; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = is("two") ? 2 : 1;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu)
{
    *gpu = (void *)(size_t)(index + 1);
    return OK;
}

int nvmlDeviceGetName(void *gpu, char *name, unsigned length)
{
    printf("a library that prints\n");
    fflush(stdout);
    snprintf(name, length, "%s",
             is("thor") ? "NVIDIA Thor" : is("nvgpu") ? "Orin (nvgpu)" : "NVIDIA RTX");
    return OK;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", (unsigned)(size_t)gpu);
    return is("thor") ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *rates)
{
    rates[0] = is("nvgpu") ? 0 : is_first(gpu) ? 37 : 99;
    rates[1] = is("nvgpu") ? 0 : 80;
    return is("nvgpu") ? OK : asked(gpu);
}

int nvmlDeviceGetClockInfo(void *gpu, int clock, unsigned *mhz)
{
    *mhz = clock == 2 ? 10501 : 1980;
    return clock == 2 ? asked_of_card(gpu) : asked(gpu);
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts)
{
    *milliwatts = 187250;
    return asked_of_card(gpu);
}

int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *milliwatts)
{
    *milliwatts = 320000;
    return asked_of_card(gpu);
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius)
{
    *celsius = 61;
    return asked_of_card(gpu);
}

int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *bytes)
{
    bytes[0] = 17171480576ULL; /* total, free, used */
    bytes[1] = 7507804160ULL;
    bytes[2] = 9663676416ULL;
    return asked_of_card(gpu);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *bits)
{
    *bits = 0x4 | 0x20;
    return asked_of_card(gpu);
}

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute_instance;
};

static int processes(void *gpu, unsigned *count, struct process *list, unsigned length)
{
    unsigned room = *count;
    int wrong = asked(gpu);
    *count = length;
    if (wrong)
        return wrong;
    if (room < length)
        return INSUFFICIENT_SIZE;
    for (unsigned n = 0; n < length; n++) {
        list[n].pid = 4321 + n;
        list[n].used = n == 1 ? -1ULL : 1000000000ULL; /* the second may not be seen */
    }
    return OK;
}

#ifdef OLD
#define VERSION(name) name##_v2
#else
#define VERSION(name) name##_v3
#endif

int VERSION(nvmlDeviceGetComputeRunningProcesses)(void *gpu, unsigned *count, struct process *list)
{
    return processes(gpu, count, list, 2);
}

int VERSION(nvmlDeviceGetGraphicsRunningProcesses)(void *gpu, unsigned *count, struct process *list)
{
    return processes(gpu, count, list, is_first(gpu) ? 1 : 0);
}

#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *bits)
{
    return nvmlDeviceGetCurrentClocksThrottleReasons(gpu, bits);
}

struct temperature {
    unsigned version;
    int sensor;
    int celsius;
};

int nvmlDeviceGetTemperatureV(void *gpu, struct temperature *temperature)
{
    temperature->celsius = 48;
    return asked(gpu);
}
#endif
