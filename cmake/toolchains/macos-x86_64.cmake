# x86-64 on macOS.
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(attn_target x86_64-macos)
include(${CMAKE_CURRENT_LIST_DIR}/macos.cmake)
set(CMAKE_C_FLAGS_INIT -mevex512) # the compiler takes 512-bit registers away, from files with -mavx512f too
