#include "torch/checkpoint/kept_values.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <sstream>
#include <utility>

#include <c10/util/Exception.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::checkpoint {

namespace {

std::string kept_name(const std::string& name) { return "kept value '" + name + "'"; }

/// Runs code of the user, and throws what it throws as a CheckpointError with `what`.
template <class Work>
auto named_errors(const std::string& what, const Work& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    throw CheckpointError(what + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw CheckpointError(what + ": " + error.what());
  } catch (...) {
    throw CheckpointError(what + ": an exception that is no std::exception");
  }
}

// ---------------------------------------------------------------- what ranks compare

/// What the others know of a rank's kept object.
struct KeptRow {
  std::string form;       ///< scope and kind, such as "a per-rank integer"
  std::string value{};    ///< a number as text, or size and checksum; empty if values are not compared
  std::size_t bytes = 0;  ///< of a per-rank value
};
using KeptTable = std::map<std::string, KeptRow>;  // by name

std::string form_of(KeptScope scope, detail::KeptKind kind) {
  return (scope == KeptScope::kPerRank ? "per-rank " : "") + std::string(kind_name(kind));
}

std::string shown_value(const KeptBytes& value) {
  if (is_number(value.kind)) return value.bytes;
  std::ostringstream out;
  out << "of " << value.bytes.size() << " bytes with checksum " << std::hex
      << checksum(std::as_bytes(std::span(value.bytes)));
  return out.str();
}

/// Four lines a row. Names have no line breaks.
std::string text_of(const KeptTable& table) {
  std::string text;
  for (const auto& [name, row] : table) {
    text += name + '\n' + row.form + '\n' + row.value + '\n' + std::to_string(row.bytes) + '\n';
  }
  return text;
}

KeptTable table_of(const std::string& text) {
  KeptTable table;
  std::istringstream lines(text);
  KeptRow row;
  std::string name, bytes;
  while (std::getline(lines, name) && std::getline(lines, row.form) && std::getline(lines, row.value) &&
         std::getline(lines, bytes)) {
    row.bytes = std::stoull(bytes);
    table.emplace(name, row);
  }
  return table;
}

/// The tables of all ranks. Collective.
/// @throws CheckpointError, on every rank, if they do not agree
std::vector<KeptTable> agreed_tables(World& world, const KeptTable& mine, const std::string& subject,
                                     const char* action) {
  std::vector<KeptTable> tables;
  for (const auto& blob : world.all_gather(ranks::blob_of(text_of(mine)), action)) {
    tables.push_back(table_of(ranks::text_of(blob)));
  }
  for (std::size_t rank = 1; rank < tables.size(); ++rank) {
    const auto& first = tables[0];
    const auto& other = tables[rank];
    const auto here = " on rank " + std::to_string(rank);
    const auto lacks = [&](const KeptTable& some, const KeptTable& lacking, const std::string& which) {
      for (const auto& [name, row] : some) {
        if (lacking.contains(name)) continue;
        throw CheckpointError(subject + ": " + kept_name(name) + " is registered " + which +
                              "; register the same names on every rank");
      }
    };
    lacks(first, other, "on rank 0 and not" + here);
    lacks(other, first, here.substr(1) + " and not on rank 0");
    for (const auto& [name, row] : first) {
      const auto& that = other.at(name);
      if (that.form != row.form) {
        throw CheckpointError(subject + ": " + kept_name(name) + " is registered as " + row.form +
                              " on rank 0 and as " + that.form + here + "; register the same objects on every rank");
      }
      if (that.value != row.value) {
        throw CheckpointError(subject + ": " + kept_name(name) + " is " + row.value + " on rank 0 and " + that.value +
                              here +
                              "; make it equal, or register it with ap::kPerRank, which keeps one for each rank");
      }
    }
  }
  return tables;
}

}  // namespace

// ---------------------------------------------------------------- register and save

void KeptValues::add(const std::string& name, detail::KeptObject object, KeptScope scope) {
  if (const auto why = why_no_kept_name(name); !why.empty()) {
    throw InvalidArgument("keep: '" + name + "' is no name for a kept value: " + why);
  }
  const bool is_new = entries_.emplace(name, Entry{std::move(object), scope}).second;
  if (!is_new) throw InvalidArgument("keep: the name '" + name + "' is taken by another kept value; take another name");
}

std::map<std::string, KeptValue> KeptValues::collect(World& world, const std::string& subject) const {
  std::map<std::string, KeptValue> values;
  KeptTable mine;
  all_or_none(world, kSaveAction, subject, [&] {
    for (const auto& [name, entry] : entries_) {
      KeptBytes value{entry.object.kind, named_errors(kept_name(name), entry.object.save)};
      named_errors(kept_name(name), [&] { detail::require_kept_size(value.bytes.size()); });
      const bool is_compared = entry.scope == KeptScope::kAllRanks;
      mine[name] = {form_of(entry.scope, value.kind), is_compared ? shown_value(value) : "",
                    is_compared ? 0 : value.bytes.size()};
      values[name] = {entry.scope, {std::move(value)}};
    }
  });
  const auto tables = agreed_tables(world, mine, subject, kSaveAction);
  for (auto& [name, value] : values) {
    if (value.scope == KeptScope::kAllRanks) continue;
    std::size_t bytes = 0;
    for (const auto& table : tables) bytes += table.at(name).bytes;
    named_errors(subject + ": " + kept_name(name) + " of all ranks", [&] { detail::require_kept_size(bytes); });
    if (world.rank() != 0) {
      world.send(std::as_bytes(std::span(value.of_ranks[0].bytes)), Rank(0), kSaveAction);
      value.of_ranks.clear();
      continue;
    }
    for (std::size_t rank = 1; rank < tables.size(); ++rank) {
      KeptBytes other{value.of_ranks[0].kind, std::string(tables[rank].at(name).bytes, '\0')};
      world.receive(std::as_writable_bytes(std::span(other.bytes)), Rank::of(rank), kSaveAction);
      value.of_ranks.push_back(std::move(other));
    }
  }
  return values;
}

// ---------------------------------------------------------------- load

KeptLoad::KeptLoad(World& world, const KeptValues& kept, const std::map<std::string, KeptValue>& saved, Missing missing,
                   std::string subject)
    : world_(world), subject_(std::move(subject)) {
  KeptTable mine;
  for (const auto& [name, entry] : kept.entries_) mine[name] = {form_of(entry.scope, entry.object.kind)};
  static_cast<void>(agreed_tables(world_, mine, subject_, kLoadAction));
  all_or_none(world_, kLoadAction, subject_, [&] { plan_changes(kept, saved, missing); });
  for (const auto& [name, value] : saved) {
    if (!kept.entries_.contains(name)) unknown_ += (unknown_.empty() ? "'" : ", '") + name + "'";
  }
}

void KeptLoad::plan_changes(const KeptValues& kept, const std::map<std::string, KeptValue>& saved, Missing missing) {
  for (const auto& [name, entry] : kept.entries_) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      if (missing == Missing::kAllowed) continue;
      throw CheckpointError("it lacks the " + kept_name(name) +
                            "; to load the rest and leave the object as it is, pass {.missing = Missing::kAllowed}");
    }
    const auto& value = found->second;
    const bool is_per_rank = value.scope == KeptScope::kPerRank;
    if (is_per_rank && entry.scope == KeptScope::kAllRanks) {
      throw CheckpointError(kept_name(name) + " has one for each rank in it; register it with ap::kPerRank");
    }
    if (is_per_rank && value.of_ranks.size() != static_cast<std::size_t>(world_.size())) {
      throw CheckpointError(kept_name(name) + " has one for each of " + std::to_string(value.of_ranks.size()) +
                            " ranks in it, this world has " + std::to_string(world_.size()) +
                            "; load it with as many ranks, or do not register the name");
    }
    const auto& mine = value.of_ranks.at(is_per_rank ? static_cast<std::size_t>(world_.rank()) : 0);
    if (mine.kind != entry.object.kind) {
      throw CheckpointError(kept_name(name) + " is " + std::string(kind_name(mine.kind)) +
                            " in it, the registered one is " + std::string(kind_name(entry.object.kind)));
    }
    Change change{name, named_errors(kept_name(name), [&] { return entry.object.load(mine.bytes); }), {}};
    try {
      change.undo = entry.object.load(entry.object.save());
    } catch (...) {  // as long as nothing fails, nobody needs it
    }
    changes_.push_back(std::move(change));
  }
}

void KeptLoad::take() {
  std::size_t begun = 0;
  std::string error;
  try {
    all_or_none(world_, kLoadAction, subject_, [&] {
      for (const auto& change : changes_) {
        ++begun;
        named_errors("load of " + kept_name(change.name), change.apply);
      }
    });
  } catch (const CheckpointError& met) {
    error = met.what();
  }
  if (!error.empty()) {
    all_or_none(world_, kLoadAction, error, [&] { undo(begun); });
    throw CheckpointError(error + "; nothing has changed");
  }
  if (world_.rank() == 0 && !unknown_.empty()) {
    world_.logger(LogModule::kSession).warn("load ignores kept values that are not registered: " + unknown_);
  }
}

/// The last of the changes begun may be half made.
void KeptLoad::undo(std::size_t count) const {
  std::string lost;
  for (std::size_t i = 0; i < count; ++i) {
    try {
      if (!changes_[i].undo) throw CheckpointError("it could not save itself before");
      changes_[i].undo();
    } catch (...) {
      lost += (lost.empty() ? "'" : ", '") + changes_[i].name + "'";
    }
  }
  if (!lost.empty()) throw CheckpointError("the kept values " + lost + " could not be set back and have half a load");
}

}  // namespace autopar::checkpoint
