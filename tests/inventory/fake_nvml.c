/* A stand-in for libnvidia-ml.so.1: as much of NVML as an inventory reads, told by a text file named in FAKE_NVML.
   The file is read anew at every call, so that a test can have a GPU fall off while a program looks on. Its lines:

     init CODE                                  what nvmlInit returns
     driver VERSION
     hang SECONDS                               how long asking for a GPU takes
     gpu UUID NAME TOTAL USED STATE MIG         STATE: 0, or the error that every call on it returns; MIG: 0 or 1
     mig PARENT UUID NAME TOTAL USED
     proc UUID KIND PID MEMORY                  KIND: c(ompute), g(raphics); MEMORY -1: the driver does not tell
     nolist UUID                                processes of that device cannot be listed

   Sizes in MiB; `_` in a name stands for a space. Signatures and codes: NVML API Reference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { char uuid[96], name[96], parent[96]; unsigned long long total, used; int state, mig, nolist; } Device;

static int started;
static Device devices[64];
static int count, gpus, init_code, hang;
static char driver[80];

static FILE *open_file(void) {
    const char *path = getenv("FAKE_NVML");
    return path ? fopen(path, "r") : NULL;
}

/* Handles are 1 + an index into `devices`, whose slots are given by UUID once and for good. */
static Device *slot(const char *uuid) {
    for (int i = 0; i < count; i++)
        if (!strcmp(devices[i].uuid, uuid)) return &devices[i];
    if (count == 64) abort();
    strncpy(devices[count].uuid, uuid, 95);
    return &devices[count++];
}

static char order[64][96];

static void load(void) {
    char line[512], a[96], b[96], c[96];
    unsigned long long total, used;
    int state, mig;
    FILE *file = open_file();
    gpus = 0, init_code = 9, hang = 0;
    for (int i = 0; i < count; i++) devices[i].state = NOT_FOUND, devices[i].nolist = 0, devices[i].mig = 0;
    if (!file) return;
    init_code = OK;
    strcpy(driver, "0.0");
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "init %d", &init_code);
        sscanf(line, "driver %79s", driver);
        sscanf(line, "hang %d", &hang);
        if (sscanf(line, "gpu %95s %95s %llu %llu %d %d", a, b, &total, &used, &state, &mig) == 6) {
            Device *d = slot(a);
            strcpy(d->name, b), d->total = total, d->used = used, d->state = state, d->mig = mig, d->parent[0] = 0;
            strcpy(order[gpus++], a);
        } else if (sscanf(line, "mig %95s %95s %95s %llu %llu", a, b, c, &total, &used) == 5) {
            Device *d = slot(b);
            strcpy(d->parent, a), strcpy(d->name, c), d->total = total, d->used = used, d->state = OK;
        } else if (sscanf(line, "nolist %95s", a) == 1) {
            slot(a)->nolist = 1;
        }
    }
    fclose(file);
}

static int find(void *handle, Device **found) {
    load();
    if (!started) return UNINITIALIZED;
    size_t index = (size_t)handle;
    if (index < 1 || index > (size_t)count) return INVALID_ARGUMENT;
    *found = &devices[index - 1];
    if ((*found)->parent[0] && slot((*found)->parent)->state) return slot((*found)->parent)->state;
    return (*found)->state;
}

static void *handle_of(const char *uuid) { return (void *)(size_t)(slot(uuid) - devices + 1); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; load(); if (!init_code) started++; return init_code; }
int nvmlShutdown(void) { if (!started) return UNINITIALIZED; started--; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    load();
    snprintf(text, size, "%s", driver);
    return started ? OK : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *answer) { load(); *answer = gpus; return started ? OK : UNINITIALIZED; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    load();
    if (hang) sleep(hang);
    if (!started) return UNINITIALIZED;
    if (index >= (unsigned)gpus) return INVALID_ARGUMENT;
    *handle = handle_of(order[index]);
    return slot(order[index])->state;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    Device *d;
    int code = find(handle, &d);
    if (!code) snprintf(text, size, "%s", d->uuid);
    return code;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    Device *d;
    int code = find(handle, &d);
    if (!code) snprintf(text, size, "%s", d->name);
    for (char *c = text; !code && *c; c++) if (*c == '_') *c = ' ';
    return code;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Device *d;
    int code = find(handle, &d);
    if (code) return code;
    if (!d->total) return NOT_SUPPORTED;
    memory->total = d->total << 20, memory->used = d->used << 20, memory->free = (d->total - d->used) << 20;
    return OK;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    Device *d;
    int code = find(handle, &d);
    if (!code) *current = *pending = d->mig;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *answer) {
    Device *d;
    *answer = 7;
    return find(handle, &d);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance) {
    Device *d;
    int code = find(handle, &d);
    if (code) return code;
    for (int i = 0; i < count; i++)
        if (devices[i].state == OK && !strcmp(devices[i].parent, d->uuid) && index-- == 0) {
            *instance = (void *)(size_t)(i + 1);
            return OK;
        }
    return NOT_FOUND;
}

static int list(void *handle, char kind, unsigned *room, Process *into) {
    char line[512], uuid[96], what;
    unsigned pid, found = 0;
    long long memory;
    Device *d;
    int code = find(handle, &d);
    if (code) return code;
    if (d->nolist) return NOT_SUPPORTED;
    FILE *file = open_file();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "proc %95s %c %u %lld", uuid, &what, &pid, &memory) == 4 && what == kind && !strcmp(uuid, d->uuid)) {
            if (into && found < *room) {
                unsigned long long used = memory < 0 ? ~0ULL : (unsigned long long)memory << 20;
                into[found] = (Process){pid, used, ~0U, ~0U};
            }
            found++;
        }
    if (file) fclose(file);
    code = found > (into ? *room : 0) ? INSUFFICIENT_SIZE : OK;
    *room = found;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Process *p) { return list(h, 'c', n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, Process *p) { return list(h, 'g', n, p); }
