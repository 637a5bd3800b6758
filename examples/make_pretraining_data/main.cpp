// From plain texts to what BERT is pretrained on: a vocabulary, and shards in the layout of NVIDIA's BERT scripts.
//
//   make_pretraining_data /usr/share/cmake-3.25/Help --format prose --vocab-size 8000 --out data
//   make_pretraining_data wiki/*.txt --vocab vocab.txt --seq-length 512 --max-predictions 80 --out data512

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bert_data/documents.hpp"
#include "bert_data/pretraining_instances.hpp"
#include "bert_data/pretraining_shard.hpp"
#include "bert_data/vocabulary_builder.hpp"
#include "command_line/command_line.hpp"

namespace {

namespace fs = std::filesystem;

struct Job {
  std::vector<std::string> texts;
  std::string out, vocabulary, name = "text";
  bert_data::Format format = bert_data::Format::kSentences;
  bool cased = false;
  std::size_t vocabulary_size = 30'522;
  bert_data::InstanceOptions instances;
  int duplicates = 5;
  double validation_share = 0.05;
  std::size_t shard_rows = 50'000;
  std::uint64_t seed = 1;
};

/// A line for what takes time.
class Stage {
 public:
  explicit Stage(const std::string& what) { std::cout << what << "... " << std::flush; }
  template <class... Parts>
  void done(const Parts&... parts) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    (std::cout << ... << parts);
    std::cout << " (" << std::fixed << std::setprecision(1) << spent.count() << " s)" << std::endl;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void read_all(const std::vector<fs::path>& files, bert_data::Format format,
              const std::function<void(std::string_view)>& sentence, const std::function<void()>& end) {
  for (const auto& file : files) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error(file.string() + ": cannot open the text");
    bert_data::read_documents(in, format, sentence, end);
  }
}

bert_data::Vocabulary vocabulary_of(const Job& job, const std::vector<fs::path>& files) {
  if (!job.vocabulary.empty()) return bert_data::Vocabulary::read(job.vocabulary);
  Stage stage("vocabulary of " + std::to_string(files.size()) + " files");
  bert_data::VocabularyBuilder builder(!job.cased);
  read_all(
      files, job.format, [&](std::string_view sentence) { builder.add(sentence); }, [] {});
  auto built = builder.build(job.vocabulary_size);
  stage.done(built.size(), " pieces");
  return built;
}

std::vector<bert_data::Document> tokenised(const Job& job, const std::vector<fs::path>& files,
                                           const bert_data::WordPiece& tokenizer) {
  Stage stage("tokens");
  std::vector<bert_data::Document> documents;
  bert_data::Document document;
  std::size_t sentences = 0, tokens = 0, unknown = 0;
  read_all(
      files, job.format,
      [&](std::string_view sentence) {
        auto found = tokenizer.tokens_of(sentence);
        if (found.empty()) return;
        ++sentences;
        tokens += found.size();
        unknown += static_cast<std::size_t>(std::count(found.begin(), found.end(), tokenizer.vocabulary().unknown()));
        document.push_back(std::move(found));
      },
      [&] {
        if (!document.empty()) documents.push_back(std::move(document));
        document.clear();
      });
  stage.done(tokens, " in ", sentences, " sentences of ", documents.size(), " documents; ", unknown, " [UNK]");
  return documents;
}

/// Takes documents out for a validation.
std::vector<bert_data::Document> taken_out(std::vector<bert_data::Document>& documents, double share,
                                           bert_data::Random& random) {
  random.shuffle(documents);
  const auto count = static_cast<std::size_t>(std::ceil(static_cast<double>(documents.size()) * share));
  std::vector<bert_data::Document> out;
  for (; out.size() < count; documents.pop_back()) out.push_back(std::move(documents.back()));
  return out;
}

void write_part(const Job& job, const std::string& part, const std::vector<bert_data::Document>& documents,
                int duplicates, const bert_data::Vocabulary& vocabulary, bert_data::Random& random) {
  if (documents.size() < 2) {
    throw std::runtime_error("the " + part + " part has " + std::to_string(documents.size()) +
                             " document; random next sentences need two at least. Give more texts, put blank lines "
                             "between documents, or change --validation-share");
  }
  Stage stage(part);
  std::vector<bert_data::Instance> instances;
  for (int round = 0; round < duplicates; ++round) {
    for (std::size_t i = 0; i < documents.size(); ++i) {
      bert_data::make_instances(documents, i, job.instances, vocabulary, random,
                                [&](bert_data::Instance one) { instances.push_back(std::move(one)); });
    }
  }
  random.shuffle(instances);
  const bert_data::ShardShape shape{0, static_cast<std::int64_t>(job.instances.length),
                                    static_cast<std::int64_t>(job.instances.most_hidden)};
  std::size_t shards = 0;
  for (std::size_t begin = 0; begin < instances.size(); begin += job.shard_rows) {
    const auto end = std::min(instances.size(), begin + job.shard_rows);
    const auto file = fs::path(job.out) / (job.name + "_" + part + "_" + std::to_string(shards++) + ".hdf5");
    bert_data::write_shard(
        file, shape,
        {instances.begin() + static_cast<std::ptrdiff_t>(begin), instances.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  stage.done(instances.size(), " instances of ", documents.size(), " documents in ", shards, " shards");
}

void make(const Job& job) {
  const auto files = bert_data::text_files(job.texts);
  const bert_data::WordPiece tokenizer(vocabulary_of(job, files), !job.cased);
  auto documents = tokenised(job, files, tokenizer);
  bert_data::Random random(job.seed);
  const auto validation = taken_out(documents, job.validation_share, random);
  fs::create_directories(job.out);
  tokenizer.vocabulary().write(fs::path(job.out) / "vocab.txt");
  write_part(job, "training", documents, job.duplicates, tokenizer.vocabulary(), random);
  if (!validation.empty()) write_part(job, "validation", validation, 1, tokenizer.vocabulary(), random);
}

void add_options(CLI::App& app, Job& job) {
  app.option_defaults()->always_capture_default();
  app.add_option("texts", job.texts, "files and folders of text")->required();
  app.add_option("--out", job.out, "the folder that vocab.txt and the shards go to")->required();
  app.add_option("--name", job.name,
                 "what the shards' names begin with: texts that memory does not hold at once are "
                 "made part by part, with one --vocab, into one folder");
  app.add_option("--format", job.format,
                 "sentences: one a line, blank lines between documents; prose: a file is a document, sentences end at "
                 ". ! ? and blank lines")
      ->transform(CLI::CheckedTransformer(std::map<std::string, bert_data::Format>{
          {"sentences", bert_data::Format::kSentences}, {"prose", bert_data::Format::kProse}}));
  app.add_option("--vocab", job.vocabulary, "BERT's vocab.txt; without it a vocabulary is built from the texts")
      ->check(CLI::ExistingFile);
  app.add_option("--vocab-size", job.vocabulary_size, "pieces of a built vocabulary")->check(CLI::PositiveNumber);
  app.add_flag("--cased", job.cased, "keep case and accents");
  app.add_option("--seq-length", job.instances.length, "tokens of an instance")->check(CLI::Range(8, 65536));
  app.add_option("--max-predictions", job.instances.most_hidden, "hidden tokens of an instance at most")
      ->check(CLI::Range(1, 65536));
  app.add_option("--masked-share", job.instances.hidden_share, "of the tokens")->check(CLI::Range(0.0, 1.0));
  app.add_option("--short-share", job.instances.short_share, "instances of a random shorter length")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--duplicates", job.duplicates, "rounds through the texts, each with other hidden tokens")
      ->check(CLI::PositiveNumber);
  app.add_option("--validation-share", job.validation_share, "of the documents, which no training sees")
      ->check(CLI::Range(0.0, 0.9));
  app.add_option("--shard-rows", job.shard_rows, "instances of a file")->check(CLI::PositiveNumber);
  app.add_option("--seed", job.seed);
}

}  // namespace

int main(int argc, char** argv) try {
  Job job;
  CLI::App app("Makes BERT's pretraining data from plain text: pairs of texts, with hidden tokens, in HDF5.");
  add_options(app, job);
  if (const auto status = command_line::ended_by(app, argc, argv)) return *status;
  make(job);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "make_pretraining_data: " << error.what() << std::endl;
  return 1;
}
