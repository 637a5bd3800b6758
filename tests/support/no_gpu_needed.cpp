/// The weak default of tests that need no GPU: -1 means "do not ask".
extern "C" __attribute__((weak)) int autopar_test_visible_gpus() { return -1; }
