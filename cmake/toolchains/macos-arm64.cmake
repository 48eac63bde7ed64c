# 64-bit ARM on macOS.
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(attn_target aarch64-macos)
include(${CMAKE_CURRENT_LIST_DIR}/macos.cmake)
