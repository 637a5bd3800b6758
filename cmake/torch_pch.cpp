// Owns the precompiled header of tests and examples: an executable, since an object library is compiled with other flags.
int main() { return 0; }
