/* version.h: the one place that holds the version; the build reads it from here. */
#ifndef ATTN_VERSION_H
#define ATTN_VERSION_H
#define ATTN_VERSION_TEXT "0.1.0"
#endif
