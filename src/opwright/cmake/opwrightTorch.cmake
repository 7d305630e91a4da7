# A program must not have two versions of PyTorch: find_package(Torch), before this or after it, must have found the one
# that opwright's own C++ is built for. Goes beside what is installed, too.

function(_opwright_compare_torch version whose)
    if(NOT TORCH_INSTALL_PREFIX)
        return()
    endif()
    set(file "${TORCH_INSTALL_PREFIX}/include/torch/headeronly/version.h")
    if(NOT EXISTS "${file}")
        return()
    endif()
    file(STRINGS "${file}" lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." found)
    if(NOT found STREQUAL version)
        message(FATAL_ERROR "opwright: find_package(Torch) found ${found} in ${TORCH_INSTALL_PREFIX}, and "
            "${whose} torch ${version}, which opwright's own C++ is built for; let them be the same")
    endif()
endfunction()

function(_opwright_watch_torch version whose)
    _opwright_compare_torch("${version}" "${whose}")
    if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.19)  # a project may look for Torch after this
        cmake_language(EVAL CODE "cmake_language(DEFER CALL _opwright_compare_torch [[${version}]] [[${whose}]])")
    endif()
endfunction()
