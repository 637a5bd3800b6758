#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

/// What torchvision gives (pil_reference.py).
inline const nlohmann::json& reference() {
  static const auto read = [] {
    std::ifstream file(AUTOPAR_TEST_REFERENCE);
    if (!file) throw std::runtime_error("cannot open " AUTOPAR_TEST_REFERENCE);
    return nlohmann::json::parse(file);
  }();
  return read;
}

/// Of base64.
inline std::vector<std::uint8_t> bytes_of(const std::string& text) {
  static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    const auto value = kDigits.find(digit);
    if (value == std::string::npos) break;
    bits = (bits << 6U) | static_cast<std::uint32_t>(value);
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::uint8_t>(bits >> static_cast<unsigned>(count)));
  }
  return bytes;
}

/// The same bytes, as files have them.
inline std::vector<std::byte> file_of(const std::string& text) {
  std::vector<std::byte> file;
  for (const auto byte : bytes_of(text)) file.push_back(std::byte{byte});
  return file;
}
