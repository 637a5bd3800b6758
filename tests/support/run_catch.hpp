#pragma once

/// Catch's own main: runs the test cases that the arguments name. @return 0 if all passed
int run_catch(int argc, char** argv);
