# The library on other machines, C libraries and systems, by the files in cmake/toolchains: built like the variants of matrix.cmake, without
# the command and without threads of the library's own (jansson and pthreadpool are this machine's), and checked under an emulator.

# attn_cross(NAME SCALE PROGRAMS): NAME of the toolchain; SCALE times as many random cases as usual. What is missing is skipped by name.
function(attn_cross name scale programs)
    set(toolchain ${PROJECT_SOURCE_DIR}/cmake/toolchains/${name}.cmake)
    include(${toolchain}) # here for the names of compiler and emulator alone
    set(emulator ${CMAKE_CROSSCOMPILING_EMULATOR})
    list(POP_FRONT emulator tool)
    foreach(needed IN ITEMS ${CMAKE_C_COMPILER} ${tool} ${ARGN})
        find_program(attn_tool_${needed} ${needed})
        if(NOT attn_tool_${needed})
            attn_check(${name}.build "cross;${name}" 10 sh -c "echo 'skipped: this machine has no ${needed}'; exit 77")
            return()
        endif()
    endforeach()

    set(folder ${PROJECT_BINARY_DIR}/${name})
    attn_check(${name}.build "cross;${name}" 300 ${PROJECT_SOURCE_DIR}/scripts/build.sh ${folder} -DCMAKE_TOOLCHAIN_FILE=${toolchain}
        -DCMAKE_BUILD_TYPE=Release -DATTN_WERROR=ON -DATTN_WITH_PTHREADPOOL=OFF -DATTN_BUILD_CLI=OFF -DATTN_BUILD_CHECKS=ON
        -DATTN_CHECK_MATRIX=OFF)
    set_tests_properties(${name}.build PROPERTIES FIXTURES_SETUP ${name} PROCESSORS 2)

    set(suffix "")
    if(CMAKE_SYSTEM_NAME STREQUAL "Windows")
        set(suffix .exe)
    endif()
    set(run ${CMAKE_CROSSCOMPILING_EMULATOR})
    attn_check(${name}.trespass "cross;${name}" 60 ${CMAKE_CURRENT_SOURCE_DIR}/build/trespass.sh ${run} ${folder}/checks/trespass${suffix})
    set(tests ${name}.trespass)
    foreach(program IN LISTS programs)
        attn_check(${name}.${program} "cross;${name}" 300 ${run} ${folder}/checks/${program}${suffix} ${cross_${program}_arguments})
        list(APPEND tests ${name}.${program})
    endforeach()
    set_tests_properties(${tests} PROPERTIES FIXTURES_REQUIRED ${name} ENVIRONMENT "ATTN_CHECK_SCALE=${scale}")
endfunction()

set(cross_check_ladder_arguments 1000 100) # seed and count: the random cases only

# All check programs but check_inject (made for glibc's malloc), check_pool under qemu-user (which gives no threads to the child of a fork),
# and what needs POSIX on Windows.
set(portable consumer check_bits check_convert check_guard check_ladder check_laws check_misc check_overlap check_problem check_range
    check_reference check_status check_threads check_visible)
attn_cross(aarch64 0.05 "${portable};check_context")
attn_cross(riscv64 0.05 "${portable};check_context")
attn_cross(musl 0.2 "${portable};check_context;check_pool")
attn_cross(mingw 0.2 "${portable}" wine x86_64-w64-mingw32-objdump)
if(TEST mingw.trespass)
    attn_check(mingw.moves "cross;mingw" 60 ${CMAKE_CURRENT_SOURCE_DIR}/build/moves.sh x86_64-w64-mingw32-objdump
        ${PROJECT_BINARY_DIR}/mingw/libattn.dll)
    attn_check(mingw.symbols "cross;mingw" 60 ${CMAKE_CURRENT_SOURCE_DIR}/build/exports.sh x86_64-w64-mingw32-objdump
        ${PROJECT_SOURCE_DIR}/include/attn/attn.h ${PROJECT_BINARY_DIR}/mingw/libattn.dll)
    set_tests_properties(mingw.moves mingw.symbols PROPERTIES FIXTURES_REQUIRED mingw)
endif()
