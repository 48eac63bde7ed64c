# What the toolchains for macOS share: the compiler of the Python package ziglang (checks/requirements.txt), which brings headers for it.
# What is built is examined, not run: there is no emulator.
set(CMAKE_SYSTEM_NAME Darwin)
file(GLOB attn_zig ${CMAKE_CURRENT_LIST_DIR}/../../build/venv/lib/python3*/site-packages/ziglang/zig)
if(NOT attn_zig)
    set(attn_zig zig)
endif()
set(CMAKE_C_COMPILER ${attn_zig} cc -target ${attn_target})
set(CMAKE_SIZEOF_VOID_P 8) # CMake asks with an option that this compiler does not know
set(CMAKE_AR llvm-ar-14)
set(CMAKE_RANLIB llvm-ranlib-14)
set(CMAKE_INSTALL_NAME_TOOL llvm-install-name-tool-14)

# Libraries of this machine are of no use there.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
