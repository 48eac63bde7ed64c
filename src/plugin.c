/* plugin.c: finds and loads the devices that are libraries of their own, libattn_<name>.so, and keeps what they say when they fail. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include "device.h"
#ifdef ATTN_HAVE_PLUGINS
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char failure[512];

static void fail_with(const char *text) { snprintf(failure, sizeof failure, "%s", text); }

const char *attn_failure(void) { return failure; }

/* The folder in ATTN_PLUGINS, else the one of the file that holds this code, with a last slash; else nothing: where the loader looks. */
static void folder_of_plugins(char *folder, size_t size) {
    static const char here;
    const char *named = getenv("ATTN_PLUGINS"), *slash;
    Dl_info about;
    folder[0] = 0;
    if (named != NULL && named[0] != 0)
        snprintf(folder, size, "%s/", named);
    else if (dladdr(&here, &about) != 0 && about.dli_fname != NULL && (slash = strrchr(about.dli_fname, '/')) != NULL)
        snprintf(folder, size, "%.*s", (int)(slash - about.dli_fname) + 1, about.dli_fname);
}

static void *open_plugin(const char *name) {
    char folder[4096], path[4096 + 64], why[400];
    folder_of_plugins(folder, sizeof folder);
    snprintf(path, sizeof path, "%slibattn_%s.so", folder, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) return library;
    snprintf(why, sizeof why, "%s", dlerror());
    snprintf(path, sizeof path, "libattn_%s.so", name);
    if (getenv("ATTN_PLUGINS") == NULL) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_with(why);
    return library;
}

static const attn_device_table *table_of(void *library, const char *name) {
    char text[200];
    attn_plugin_entry *entry;
    void *symbol = dlsym(library, "attn_plugin");
    memcpy(&entry, &symbol, sizeof entry); /* ISO C converts no object pointer to a function's */
    const attn_device_table *table = symbol != NULL ? entry(ATTN_DEVICE_ABI, sizeof(attn_context), fail_with) : NULL;
    if (table != NULL && table->abi == ATTN_DEVICE_ABI && strcmp(table->name, name) == 0) return table;
    snprintf(text, sizeof text, "libattn_%s.so is of another version of this library", name);
    fail_with(text);
    return NULL;
}

/* A plugin stays for good: a driver's threads may be in it. */
const attn_device_table *attn_plugin_device(const char *name) {
    static attn_lock lock = ATTN_LOCK_INIT;
    static const attn_device_table *cuda; /* the only one yet */
    attn_lock_take(&lock);
    if (cuda == NULL) {
        void *library = open_plugin(name);
        if (library != NULL && (cuda = table_of(library, name)) == NULL) dlclose(library);
    }
    const attn_device_table *table = cuda;
    attn_lock_give(&lock);
    return table;
}
#else
/* Nothing of a thread's own here: gcc's emulation of that for Windows takes a library that Windows does not bring. */
const char *attn_failure(void) { return "this build of the library loads no plugins"; }

const attn_device_table *attn_plugin_device(const char *name) {
    (void)name;
    return NULL;
}
#endif
