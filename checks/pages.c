/* pages.c: the operating system's part of the harness: pages that may or may not be touched, and the environment. */
#include "harness.h"
#include <stdlib.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

size_t check_page(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

void *check_pages_take(size_t size) { return VirtualAlloc(NULL, size, MEM_RESERVE, PAGE_NOACCESS); }

bool check_pages_allow(void *from, size_t size, check_access access) {
    static const DWORD protections[] = { PAGE_NOACCESS, PAGE_READONLY, PAGE_READWRITE };
    DWORD before;
    return VirtualAlloc(from, size, MEM_COMMIT, PAGE_READWRITE) && VirtualProtect(from, size, protections[access], &before);
}

void check_pages_give(void *from, size_t size) {
    (void)size;
    VirtualFree(from, 0, MEM_RELEASE);
}

void check_variable(const char *name, const char *value) { _putenv_s(name, value ? value : ""); }
#else
#include <sys/mman.h>
#include <unistd.h>

size_t check_page(void) {
    static size_t page;
    if (!page) page = (size_t)sysconf(_SC_PAGESIZE);
    return page;
}

void *check_pages_take(size_t size) {
    void *from = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return from == MAP_FAILED ? NULL : from;
}

bool check_pages_allow(void *from, size_t size, check_access access) {
    static const int protections[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE };
    return mprotect(from, size, protections[access]) == 0;
}

void check_pages_give(void *from, size_t size) { munmap(from, size); }

void check_variable(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}
#endif
