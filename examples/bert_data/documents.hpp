#pragma once

#include <filesystem>
#include <functional>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace bert_data {

enum class Format {
  kSentences,  ///< a sentence a line, blank lines between documents, as BERT's own scripts want it
  kProse,      ///< text as people write it: a file is a document
};

/// Calls `sentence` for each sentence and `end` after each document that has one.
///
/// In prose a sentence ends at `.`, `!` or `?`, with quotes and brackets that close behind it, before a space and what
/// is no small letter; and at a blank line. A full stop after a single letter ends none (`J. S. Bach`). That is all:
/// `e.g. A` is cut after `e.g.`, which costs a pretraining little.
void read_documents(std::istream& in, Format format, const std::function<void(std::string_view)>& sentence,
                    const std::function<void()>& end);

/// The files themselves, and all files in folders and their folders, sorted. @throws std::runtime_error on a name that
/// there is not
[[nodiscard]] std::vector<std::filesystem::path> text_files(const std::vector<std::string>& names);

}  // namespace bert_data
