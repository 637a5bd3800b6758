// Owns the precompiled header of the torch tests: an executable, since an object library is compiled with other flags.
int main() { return 0; }
