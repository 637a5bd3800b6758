# Installs BUILD into PREFIX.aside, then moves it to PREFIX.
file(REMOVE_RECURSE "${PREFIX}" "${PREFIX}.aside")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX}.aside" COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${PREFIX}.aside" "${PREFIX}")
