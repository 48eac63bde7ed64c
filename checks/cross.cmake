# The library on other machines, C libraries and systems, by the files in cmake/toolchains: built like the variants of matrix.cmake, without
# the command and with the library's own threads or without any (jansson and pthreadpool are this machine's), and checked under an
# emulator.

# attn_cross(NAME SCALE PROGRAMS [TOOL...]): NAME of the toolchain; SCALE times as many random cases as usual. TOOLs are needed beside the
# toolchain's compiler and emulator; what is missing is skipped by name.
function(attn_cross name scale programs)
    set(toolchain ${PROJECT_SOURCE_DIR}/cmake/toolchains/${name}.cmake)
    include(${toolchain}) # for the names of compiler and emulator: nothing else of it leaves this function
    set(run ${CMAKE_CROSSCOMPILING_EMULATOR})
    set(tools ${CMAKE_C_COMPILER})
    list(SUBLIST tools 0 1 tools)
    list(APPEND tools llvm-nm-14 ${ARGN})
    foreach(tool IN LISTS tools)
        string(MAKE_C_IDENTIFIER "attn_tool_${tool}" found)
        find_program(${found} ${tool})
        if(NOT ${found})
            attn_check(${name}.build "cross;${name}" 10 sh -c "echo 'skipped: this machine has no ${tool}' && exit 77")
            return()
        endif()
    endforeach()

    set(folder ${PROJECT_BINARY_DIR}/${name})
    attn_check(${name}.build "cross;${name}" 300 ${PROJECT_SOURCE_DIR}/scripts/build.sh ${folder} -DCMAKE_TOOLCHAIN_FILE=${toolchain}
        -DCMAKE_BUILD_TYPE=Release -DATTN_WERROR=ON -DATTN_WITH_PTHREADPOOL=OFF -DATTN_BUILD_CLI=OFF -DATTN_BUILD_CHECKS=ON
        -DATTN_CHECK_MATRIX=OFF ${${name}_options})
    set_tests_properties(${name}.build PROPERTIES FIXTURES_SETUP ${name} PROCESSORS 2
        ENVIRONMENT "ZIG_LOCAL_CACHE_DIR=${folder}/zig;ZIG_GLOBAL_CACHE_DIR=${folder}/zig") # else in the home folder

    set(library libattn.so)
    if(CMAKE_SYSTEM_NAME STREQUAL "Windows")
        set(library libattn.dll)
        set(suffix .exe)
    elseif(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
        set(library libattn.dylib)
    endif()
    attn_check(${name}.exports "cross;${name}" 60 ${CMAKE_CURRENT_SOURCE_DIR}/build/exports.sh ${PROJECT_SOURCE_DIR}/include/attn/attn.h
        ${folder}/${library})
    set(tests ${name}.exports)
    if(programs)
        attn_check(${name}.trespass "cross;${name}" 60
            ${CMAKE_CURRENT_SOURCE_DIR}/build/trespass.sh ${run} ${folder}/checks/trespass${suffix})
        list(APPEND tests ${name}.trespass)
    endif()
    foreach(program IN LISTS programs)
        attn_check(${name}.${program} "cross;${name}" 300 ${run} ${folder}/checks/${program}${suffix} ${cross_${program}_arguments})
        list(APPEND tests ${name}.${program})
    endforeach()
    set_tests_properties(${tests} PROPERTIES FIXTURES_REQUIRED ${name} ENVIRONMENT "ATTN_CHECK_SCALE=${scale}")
    if(CMAKE_SYSTEM_NAME STREQUAL "Windows")
        set_tests_properties(${tests} PROPERTIES RESOURCE_LOCK wine)
    endif()
endfunction()

set(cross_check_ladder_arguments 1000 100) # seed and count: the random cases only

# All check programs but check_inject (made for glibc's malloc), check_pool where there are no threads, and what needs POSIX on Windows.
set(portable consumer check_bits check_convert check_guard check_ladder check_laws check_misc check_overlap check_problem check_range
    check_reference check_status check_threads check_visible)
set(aarch64_options -DATTN_WITH_PTHREADS=OFF) # qemu-user falls over threads in the child of a fork
set(riscv64_options ${aarch64_options})
attn_cross(aarch64 0.05 "${portable};check_context" qemu-aarch64)
attn_cross(riscv64 0.05 "${portable};check_context" qemu-riscv64)
attn_cross(musl 0.2 "${portable};check_context;check_pool")
attn_cross(mingw 0.2 "${portable}" wine x86_64-w64-mingw32-objdump)
if(TEST mingw.exports)
    attn_check(mingw.moves "cross;mingw" 60 ${CMAKE_CURRENT_SOURCE_DIR}/build/moves.sh x86_64-w64-mingw32-objdump
        ${PROJECT_BINARY_DIR}/mingw/libattn.dll)
    set_tests_properties(mingw.moves PROPERTIES FIXTURES_REQUIRED mingw)
endif()

# Built, linked and examined, not run.
attn_cross(macos-arm64 1 "" llvm-ar-14 llvm-objdump-14)
attn_cross(macos-x86_64 1 "" llvm-ar-14 llvm-objdump-14)
