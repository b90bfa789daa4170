// A libcuda.so.1 without a GPU: checks what it is called with and prints each launch.
// Built by the fixture `fake_driver` of conftest.py, for tests of the real cuda-bindings.
// Assumes nothing of a device: handles are made-up numbers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef int Result;
typedef void* Handle;
Result cuInit(unsigned flags) { return 0; }
Result cuDriverGetVersion(int* version) { *version = 13000; return 0; }
Result cuDeviceGetCount(int* count) { *count = 1; return 0; }
Result cuDeviceGet(int* device, int index) { *device = index; return index == 0 ? 0 : 101; }
Result cuDevicePrimaryCtxRetain(Handle* context, int device) { *context = (Handle)0x1000; return 0; }
Result cuCtxPushCurrent(Handle context) { return context == (Handle)0x1000 ? 0 : 1; }
Result cuCtxPopCurrent(Handle* context) { *context = (Handle)0x1000; return 0; }
Result cuModuleLoadData(Handle* module, const char* image) {
    *module = (Handle)0x2000; return memcmp(image, "\x7f" "ELF", 4) ? 200 : 0; }
Result cuModuleUnload(Handle module) { return module == (Handle)0x2000 ? 0 : 1; }
Result cuModuleGetFunction(Handle* function, Handle module, const char* name) {
    *function = (Handle)0x3000; return strcmp(name, "scale") ? 500 : 0; }
Result cuFuncGetAttribute(int* value, int attribute, Handle function) { *value = 100 + attribute; return 0; }
Result cuFuncSetAttribute(Handle function, int attribute, int value) { return attribute == 8 && value < 99999 ? 0 : 1; }
Result cuFuncGetParamInfo(Handle function, size_t index, size_t* offset, size_t* size) {
    int count = getenv("FAKE_PARAMETERS") ? atoi(getenv("FAKE_PARAMETERS")) : 1;
    *offset = 8 * index; *size = 8; return index < count ? 0 : 1; }
Result cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, Handle stream, void** parameters, void** extra) {
    if (function != (Handle)0x3000 || !parameters || extra) return 1;
    if (stream == (Handle)8) return 0;  // without a word
    printf("%u %u %u %u %u %u %u %ld", gx, gy, gz, bx, by, bz, shared, (long)stream);
    size_t offset, size;
    for (size_t i = 0; !cuFuncGetParamInfo(function, i, &offset, &size); i++) printf(" %ld", *(long*)parameters[i]);
    printf("\n");
    fflush(stdout);
    return stream == (Handle)9 ? 400 : 0; }
Result cuGetErrorName(Result code, const char** text) { *text = code == 400 ? "INVALID_HANDLE" : "OTHER"; return 0; }
Result cuGetErrorString(Result code, const char** text) { *text = "some text"; return 0; }
Result cuTensorMapEncodeTiled(unsigned long* map, int type, unsigned rank, void* address, unsigned long* sides,
                              unsigned long* strides, unsigned* box, unsigned* steps, int interleave, int swizzle,
                              int promotion, int fill) {
    if ((size_t)map % 64 || type != 1 || rank != 2 || steps[0] != 1 || steps[1] != 1 || interleave || swizzle != 3 || fill)
        return 1;
    unsigned long row[16] = {(size_t)address, sides[0], sides[1], strides[0], box[0], box[1]};
    memcpy(map, row, 128);
    return (size_t)address % 16 ? 1 : 0; }
#define ROW(name) {#name, (void*)name}
static struct { const char* name; void* function; } table[] = {
    ROW(cuInit), ROW(cuDriverGetVersion), ROW(cuDeviceGetCount), ROW(cuDeviceGet), ROW(cuDevicePrimaryCtxRetain),
    ROW(cuCtxPushCurrent), ROW(cuCtxPopCurrent), ROW(cuModuleLoadData), ROW(cuModuleUnload), ROW(cuModuleGetFunction),
    ROW(cuFuncGetAttribute), ROW(cuFuncSetAttribute), ROW(cuLaunchKernel), ROW(cuGetErrorName), ROW(cuGetErrorString),
    ROW(cuTensorMapEncodeTiled), ROW(cuFuncGetParamInfo)};
Result cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long flags, int* status) {
    *function = 0;
    if (!strcmp(name, "cuGetProcAddress")) *function = (void*)cuGetProcAddress_v2;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) *function = table[i].function;
    if (status) *status = *function ? 0 : 1;
    return *function ? 0 : 500; }
Result cuGetProcAddress(const char* name, void** function, int version, unsigned long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, 0); }
