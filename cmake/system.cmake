# What differs from one operating system to another: definitions, flags, links and exports of the library.
set(CMAKE_THREAD_PREFER_PTHREAD ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

set(attn_system_definitions _POSIX_C_SOURCE=200809L)
set(attn_system_flags -fno-semantic-interposition)
set(attn_system_links Threads::Threads m)
set(attn_system_link_flags -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--as-needed)
set(attn_system_exports "") # everywhere but on Windows the objects say what is exported
set(attn_system_users "")   # what users of the shared library define

if(APPLE)
    set(attn_system_definitions _DARWIN_C_SOURCE) # POSIX alone hides the number of CPUs
    set(attn_system_flags "")
    set(attn_system_link_flags -Wl,-dead_strip_dylibs)
elseif(WIN32)
    set(attn_system_definitions _WIN32_WINNT=0x0601 __USE_MINGW_ANSI_STDIO=1) # locks of Windows 7; %zu
    set(attn_system_flags "")
    set(attn_system_links "")       # locks and clock are Windows' own
    set(attn_system_link_flags -static-libgcc)
    set(attn_system_users ATTN_SHARED)

    # Its stacks are aligned to 16 bytes and gcc does not align them further (its bug 54412): vectors of 32 and 64 bytes that are spilled
    # there must be moved by instructions that mind no alignment, which the assembler puts in the place of those that do.
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        set(attn_system_flags -Wa,-muse-unaligned-vector-move)
        include(CheckCSourceCompiles)
        set(CMAKE_REQUIRED_FLAGS ${attn_system_flags})
        check_c_source_compiles("int main(void) { return 0; }" attn_has_unaligned_moves)
        unset(CMAKE_REQUIRED_FLAGS)
        if(NOT attn_has_unaligned_moves)
            message(FATAL_ERROR "gcc for Windows needs an assembler that knows -muse-unaligned-vector-move: binutils 2.38 or newer")
        endif()
    endif()

    # The same objects make both libraries, so they do not say what a DLL exports; the header does.
    set(header ${CMAKE_CURRENT_SOURCE_DIR}/include/attn/attn.h)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    file(READ ${header} declarations)
    string(REGEX MATCHALL "ATTN_API [^;(]*[(]" declarations "${declarations}")
    list(FILTER declarations INCLUDE REGEX " [*]?attn_[a-z0-9_]+[(]$") # and not what defines ATTN_API
    list(TRANSFORM declarations REPLACE ".*(attn_[a-z0-9_]*)[(]" "    \\1\n")
    list(JOIN declarations "" declarations)
    set(attn_system_exports ${PROJECT_BINARY_DIR}/attn.def)
    file(CONFIGURE OUTPUT ${attn_system_exports} CONTENT "EXPORTS\n${declarations}")
endif()
