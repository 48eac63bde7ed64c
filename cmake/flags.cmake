# The compiler flags that everything here is built with, as the interface library attn_flags; never passed on to users of the library.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set_property(CACHE CMAKE_BUILD_TYPE PROPERTY VALUE Release)
endif()
if(NOT CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
    message(FATAL_ERROR "libattn needs gcc 12 or clang 14, or newer; this is ${CMAKE_C_COMPILER_ID}")
endif()

add_library(attn_flags INTERFACE)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
target_compile_options(attn_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
    # The same source gives the same bits on every compiler: products and sums are fused only where the code says so.
    -ffp-contract=off -fno-math-errno)
if(ATTN_WERROR)
    target_compile_options(attn_flags INTERFACE -Werror)
endif()

if(ATTN_SANITIZE STREQUAL "address")
    set(attn_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
    if(CMAKE_C_COMPILER_ID MATCHES "Clang")
        list(APPEND attn_sanitize -fsanitize=fuzzer-no-link)
    endif()
elseif(ATTN_SANITIZE STREQUAL "thread")
    set(attn_sanitize -fsanitize=thread)
elseif(ATTN_SANITIZE)
    message(FATAL_ERROR "ATTN_SANITIZE: must be address or thread, not ${ATTN_SANITIZE}")
endif()
if(ATTN_SANITIZE)
    target_compile_options(attn_flags INTERFACE ${attn_sanitize} -fno-omit-frame-pointer -g)
    target_link_options(attn_flags INTERFACE ${attn_sanitize})
endif()
