# FIRKIN_PYTHON: the Python with the wheels of tools/requirements.txt; the one that the environment names, or .venv's.
if(NOT "$ENV{FIRKIN_PYTHON}" STREQUAL "")
  set(FIRKIN_PYTHON $ENV{FIRKIN_PYTHON})
else()
  set(FIRKIN_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
endif()
