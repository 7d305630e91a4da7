# find_package(opwright), with opwright_DIR as `python -m opwright cmake` prints it:
#
#     find_package(opwright REQUIRED)
#     opwright_add_operators(my_ops path/to/operators opwright.linear)
#     target_link_libraries(my_program PRIVATE my_ops)
#
# An operator is a folder with op.py and its kernels, a file, a package, or one that Python knows by name. The target is
# a shared library, to be linked, or loaded with dlopen or torch.ops.load_library; <my_ops/operators.h> has a function
# for each operator. The kernels are compiled by the project's compilers; those for GPUs where it enables the language
# CUDA, for CMAKE_CUDA_ARCHITECTURES. PyTorch is the one of that Python, and the one of find_package(Torch), where the
# project asks for it, must be of the same version.
#
# OPWRIGHT_PYTHON names the interpreter; by default it is Python3_EXECUTABLE or Python_EXECUTABLE where the project has
# found Python, else the one whose environment this file lies in.

cmake_minimum_required(VERSION 3.18)

set(opwright_CMAKE_FOLDER "${CMAKE_CURRENT_LIST_DIR}")
include("${CMAKE_CURRENT_LIST_DIR}/opwrightTorch.cmake")

function(_opwright_find_python)
    if(OPWRIGHT_PYTHON)
        return()
    endif()
    set(candidates "${Python3_EXECUTABLE}" "${Python_EXECUTABLE}")
    set(folder "${opwright_CMAKE_FOLDER}")
    foreach(_ RANGE 6)
        get_filename_component(folder "${folder}" DIRECTORY)
        list(APPEND candidates "${folder}/bin/python3" "${folder}/.venv/bin/python3")
    endforeach()
    list(APPEND candidates "$ENV{VIRTUAL_ENV}/bin/python3" python3)
    foreach(candidate IN LISTS candidates)
        if(NOT candidate OR (IS_ABSOLUTE "${candidate}" AND NOT EXISTS "${candidate}"))
            continue()
        endif()
        execute_process(
            COMMAND "${candidate}" -c "import importlib.util as u; print(u.find_spec('opwright').origin)"
            OUTPUT_VARIABLE origin OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
        if(NOT failed)
            set(OPWRIGHT_PYTHON "${candidate}" CACHE FILEPATH "The Python that has opwright")
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "opwright: no Python has it; set OPWRIGHT_PYTHON to an interpreter that does")
endfunction()

# opwright_add_operators(TARGET OPERATOR…)
function(opwright_add_operators target)
    if(NOT ARGN)
        message(FATAL_ERROR "opwright_add_operators(${target} OPERATOR…): name operators: folders, files, packages")
    endif()
    _opwright_find_python()
    get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    set(wishes --target "${target}" --to "${CMAKE_CURRENT_BINARY_DIR}/opwright/${target}")
    if("CUDA" IN_LIST languages)
        list(APPEND wishes --cuda)
    endif()
    set(operators)
    foreach(operator IN LISTS ARGN)
        if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${operator}")
            set(operator "${CMAKE_CURRENT_SOURCE_DIR}/${operator}")
        endif()
        list(APPEND operators "${operator}")
    endforeach()
    execute_process(
        COMMAND "${OPWRIGHT_PYTHON}" -m opwright cmake ${wishes} -- ${operators}
        WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" RESULT_VARIABLE failed ERROR_VARIABLE said)
    if(failed)
        message(FATAL_ERROR "${said}")
    elseif(said)
        message(STATUS "${said}")
    endif()

    add_library(${target} SHARED)
    set(listing "${CMAKE_CURRENT_BINARY_DIR}/opwright/${target}/operators.cmake")
    include("${listing}")
    _opwright_watch_torch("${_ow_torch_version}" "${OPWRIGHT_PYTHON} has")
    # What Python read is read again when it changes.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_ow_read})

    target_compile_options(${target} PRIVATE ${_ow_registry_options})
    _opwright_library(${target})
    foreach(part IN LISTS _ow_parts)
        add_library(${part} SHARED ${_ow_sources_of_${part}})
        target_compile_options(${part} PRIVATE ${_ow_options_of_${part}})
        target_compile_definitions(${part} PRIVATE ${_ow_definitions_of_${part}})
        target_include_directories(${part} PRIVATE ${_ow_includes_of_${part}})
        target_link_options(${part} PRIVATE ${_ow_ldflags_of_${part}})
        set_target_properties(${part} PROPERTIES
            CUDA_SEPARABLE_COMPILATION ${_ow_rdc_of_${part}} CUDA_RESOLVE_DEVICE_SYMBOLS ${_ow_rdc_of_${part}})
        _opwright_library(${part})
        if(_ow_needs_runtime_of_${part})  # it calls CUDA and has no CUDA to compile, for which CMake would link it
            target_link_directories(${part} PRIVATE ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
            target_link_libraries(${part} PRIVATE -lcudart_static -ldl -lrt -lpthread)
        endif()
        target_link_libraries(${target} PRIVATE ${part})
    endforeach()
    # A linker drops a library of which a program uses no symbol; these register operators all the same.
    target_link_options(${target} PRIVATE LINKER:--no-as-needed INTERFACE LINKER:--no-as-needed)
    target_sources(${target} PRIVATE "${_ow_generated}/registry.cpp")
    target_link_libraries(${target} PRIVATE "${_ow_generated}/libopwright_native.so"
        INTERFACE "$<BUILD_INTERFACE:${_ow_generated}/libopwright_native.so>"
        "$<INSTALL_INTERFACE:$<INSTALL_PREFIX>/lib/libopwright_native.so>")
    target_include_directories(${target} SYSTEM INTERFACE  # what a project warns of is its own code
        "$<BUILD_INTERFACE:${_ow_generated}/include>" "$<BUILD_INTERFACE:${_ow_include}>" "$<INSTALL_INTERFACE:include>")
    if(NOT TARGET torch)
        target_include_directories(${target} SYSTEM INTERFACE "$<BUILD_INTERFACE:${_ow_torch_includes}>")
        target_link_libraries(${target} INTERFACE
            "$<BUILD_INTERFACE:${_ow_torch_libraries}/libtorch_cpu.so>" "$<BUILD_INTERFACE:${_ow_torch_libraries}/libc10.so>")
    endif()
    target_compile_features(${target} INTERFACE cxx_std_20)

    set(files)
    foreach(part IN LISTS _ow_parts)
        list(APPEND files ${part} "$<TARGET_FILE:${part}>")
    endforeach()
    add_custom_command(TARGET ${target} POST_BUILD VERBATIM
        COMMAND "${OPWRIGHT_PYTHON}" -I "${opwright_CMAKE_FOLDER}/verify.py" "${_ow_generated}/expected.txt" ${files})

    install(FILES "${_ow_generated}/libopwright_native.so" DESTINATION lib)
    install(DIRECTORY "${_ow_generated}/include/" DESTINATION include)
    install(FILES "${_ow_include}/opwright/operators.h" "${_ow_include}/opwright/package.h"
        DESTINATION include/opwright)
    file(GENERATE OUTPUT "${_ow_generated}/${target}Config.cmake" CONTENT
"include(\"\${CMAKE_CURRENT_LIST_DIR}/${target}Targets.cmake\")
include(\"\${CMAKE_CURRENT_LIST_DIR}/opwrightTorch.cmake\")
_opwright_watch_torch(${_ow_torch_version} \"${target} was built with\")
")
    install(EXPORT ${target} FILE ${target}Targets.cmake NAMESPACE ${target}:: DESTINATION lib/cmake/${target})
    install(FILES "${_ow_generated}/${target}Config.cmake" "${opwright_CMAKE_FOLDER}/opwrightTorch.cmake"
        DESTINATION lib/cmake/${target})
endfunction()

# What every library of a target is: optimised as opwright builds them, whatever the rest of a project is.
macro(_opwright_library library)
    target_include_directories(${library} SYSTEM PRIVATE "${_ow_include}" ${_ow_torch_includes})
    set_target_properties(${library} PROPERTIES
        CXX_STANDARD 17 CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
        BUILD_RPATH "${_ow_generated};${_ow_torch_libraries}" INSTALL_RPATH "\$ORIGIN")
    target_link_libraries(${library} PRIVATE
        -Wl,--as-needed -lstdc++ -Wl,--no-as-needed "${_ow_torch_libraries}/libtorch_cpu.so")
    # What PyTorch was told of kernels it keeps: a library that is closed stays. What says which types a kernel takes has
    # no reader that a linker knows of, and stays where a project has it drop what nobody reads.
    target_link_options(${library} PRIVATE LINKER:-z,nodelete LINKER:--exclude-libs,ALL LINKER:--no-gc-sections)
    if("CUDA" IN_LIST languages)
        target_include_directories(${library} SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
        set_target_properties(${library} PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static)
        target_link_libraries(${library} PRIVATE "${_ow_torch_libraries}/libtorch.so")
    endif()
    install(TARGETS ${library} EXPORT ${target} LIBRARY DESTINATION lib RUNTIME DESTINATION bin)
endmacro()
