# The library: one set of objects, linked as attn::attn (shared) and attn::static.
set(attn_sources
    src/api.c
    src/convert.c
    src/overlap.c
    src/memory.c
    src/plan.c
    src/plugin.c
    src/problem.c
    src/reference.c
    src/system.c
    src/cpu/device.c
    src/cpu/features.c
    src/cpu/forward.c
    src/cpu/measure.c
    src/cpu/openmp.c
    src/cpu/pool.c
    src/cpu/rows.c
    src/cpu/isa_scalar.c)

# Only these files hold instructions that some machines lack; nothing of them runs before the machine is known to have them.
set(attn_isa_scalar_flags "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND attn_sources src/cpu/isa_avx2.c src/cpu/isa_avx512.c src/cpu/isa_avx512bf16.c)
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux") # other systems are not asked for tiles
        list(APPEND attn_sources src/cpu/isa_amx.c)
    endif()
    set(attn_isa_avx2_flags -mavx2 -mfma -mf16c)
    set(attn_isa_avx512_flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
    set(attn_isa_avx512bf16_flags ${attn_isa_avx512_flags} -mavx512bf16)
    set(attn_isa_amx_flags ${attn_isa_avx512bf16_flags} -mamx-tile -mamx-bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND attn_sources src/cpu/isa_neon.c src/cpu/isa_neonbf16.c)
    set(attn_isa_neon_flags "") # of the base
    set(attn_isa_neonbf16_flags -march=armv8.2-a+bf16)
    if(CMAKE_SYSTEM_NAME STREQUAL "Darwin") # zig's compiler for it does not know -march
        set(attn_isa_neonbf16_flags -mcpu=generic+bf16)
    endif()
endif()
if(ATTN_EMULATE_TILES)
    list(APPEND attn_sources src/cpu/isa_amx.c)
    list(REMOVE_DUPLICATES attn_sources)
    set(attn_isa_amx_flags "")
endif()
# With every check of the sanitizers inlined these files take minutes to compile: calls instead, no exits (UBSAN_OPTIONS=halt_on_error=1
# makes them when run), and none of the checks that the address sanitizer makes too.
set(attn_isa_sanitize "")
if(ATTN_SANITIZE STREQUAL "address")
    set(attn_isa_sanitize -fno-sanitize=null,object-size,pointer-overflow -fsanitize-recover=undefined)
    if(CMAKE_C_COMPILER_ID MATCHES "Clang")
        list(APPEND attn_isa_sanitize -Wno-pass-failed -fno-sanitize=fuzzer-no-link -mllvm -asan-instrumentation-with-call-threshold=0)
    endif()
endif()
foreach(isa IN ITEMS scalar avx2 avx512 avx512bf16 amx neon neonbf16)
    set(file src/cpu/isa_${isa}.c)
    if(file IN_LIST attn_sources)
        # -O3 in every build type but Debug and the sanitizers', also in those that say -O2.
        set_property(SOURCE ${file} PROPERTY COMPILE_OPTIONS
            ${attn_isa_${isa}_flags} ${attn_isa_sanitize} "$<$<NOT:$<OR:$<CONFIG:Debug>,$<BOOL:${ATTN_SANITIZE}>>>:-O3>")
    endif()
endforeach()

add_library(attn_objects OBJECT ${attn_sources})
set_target_properties(attn_objects PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(attn_objects PRIVATE ${attn_system_definitions} $<$<BOOL:${ATTN_EMULATE_TILES}>:ATTN_EMULATE_TILES>)
target_compile_options(attn_objects PRIVATE ${attn_system_flags})
target_include_directories(attn_objects PRIVATE include src)
target_link_libraries(attn_objects PRIVATE attn_flags)

set(attn_private_links ${attn_system_links})

# Plugins (src/plugin.c): where programs can load libraries while they run.
if(NOT WIN32 AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_compile_definitions(attn_objects PRIVATE ATTN_HAVE_PLUGINS=1)
    list(APPEND attn_private_links ${CMAKE_DL_LIBS})
endif()

# Threads: by pthreadpool, else by the library itself, else none. Not on Windows.
set(attn_workers "")
if(WIN32)
    if(ATTN_WITH_PTHREADPOOL AND NOT ATTN_WITH_PTHREADPOOL STREQUAL "AUTO")
        message(FATAL_ERROR "ATTN_WITH_PTHREADPOOL is ${ATTN_WITH_PTHREADPOOL} but on Windows the library has no threads of its own")
    endif()
else()
    if(ATTN_WITH_PTHREADPOOL)
        list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
        find_package(pthreadpool)
    endif()
    if(ATTN_WITH_PTHREADPOOL AND pthreadpool_FOUND)
        set(attn_workers pthreadpool)
        target_link_libraries(attn_objects PRIVATE pthreadpool::pthreadpool)
        list(APPEND attn_private_links pthreadpool::pthreadpool)
    elseif(ATTN_WITH_PTHREADPOOL AND NOT ATTN_WITH_PTHREADPOOL STREQUAL "AUTO")
        message(FATAL_ERROR "ATTN_WITH_PTHREADPOOL is ${ATTN_WITH_PTHREADPOOL} but pthreadpool is not found (Debian: libpthreadpool-dev)")
    elseif(ATTN_WITH_PTHREADS)
        set(attn_workers pthreads)
    endif()
endif()
if(attn_workers)
    string(TOUPPER "ATTN_HAVE_${attn_workers}" attn_workers_definition)
    set(attn_pool_definition ATTN_HAVE_WORKERS=1 ${attn_workers_definition}=1)
    target_sources(attn_objects PRIVATE src/cpu/workers.c src/cpu/workers_${attn_workers}.c)
    target_compile_definitions(attn_objects PRIVATE ${attn_pool_definition})
endif()

foreach(kind IN ITEMS shared static)
    string(TOUPPER ${kind} KIND)
    add_library(attn_${kind} ${KIND} $<TARGET_OBJECTS:attn_objects> $<$<STREQUAL:${kind},shared>:${attn_system_exports}>)
    set_target_properties(attn_${kind} PROPERTIES OUTPUT_NAME attn LINKER_LANGUAGE C)
    target_include_directories(attn_${kind} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(attn_${kind} PRIVATE ${attn_private_links} $<BUILD_INTERFACE:attn_flags>)
endforeach()
set_target_properties(attn_shared PROPERTIES EXPORT_NAME attn VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_compile_definitions(attn_shared INTERFACE ${attn_system_users})
set_target_properties(attn_static PROPERTIES EXPORT_NAME static)
if(NOT ATTN_SANITIZE)
    target_link_options(attn_shared PRIVATE ${attn_system_link_flags})
endif()
add_library(attn::attn ALIAS attn_shared)
add_library(attn::static ALIAS attn_static)
