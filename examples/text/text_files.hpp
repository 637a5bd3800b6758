#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// The bytes of files, one after the other; of folders all files within, in the order of their names, without links and
/// without those that look binary (a zero byte near their beginning).
/// @throws std::runtime_error naming what cannot be read, or when there is no text in any
std::string read_texts(const std::vector<std::filesystem::path>& paths);
