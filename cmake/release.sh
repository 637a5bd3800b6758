#!/usr/bin/env bash
# bash cmake/release.sh VERSION [--no-tests] [--verify] [--output FOLDER]
#
# Makes a release of the commit that is checked out: tests it, writes autopar-VERSION.tar.gz with its SHA-256 sum, and tags it
# vVERSION. Nothing is pushed. The tag comes last, so a release that fails leaves none.
#
#   --no-tests       a dry run, without `bash cmake/quickstart.sh test`
#   --verify         runs the README's two commands in the unpacked archive; without it, they are printed
#   --output FOLDER  where the archive goes (build/release)
set -euo pipefail

usage() {
  echo "usage: bash cmake/release.sh VERSION [--no-tests] [--verify] [--output FOLDER]" >&2
  exit 2
}

fail() {
  printf 'release: %s\n' "$*" >&2
  exit 1
}

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=
run_tests=true
verify=false
output=$source_dir/build/release
while [ $# -gt 0 ]; do
  case "$1" in
    --no-tests) run_tests=false ;;
    --verify) verify=true ;;
    --output)
      [ $# -gt 1 ] || usage
      output=$(realpath -m "$2")
      shift
      ;;
    -*) usage ;;
    *)
      [ -z "$version" ] || usage
      version=$1
      ;;
  esac
  shift
done
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || usage
readonly tag=v$version name=autopar-$version
cd "$source_dir"

# ---------------------------------------------------------------- 1. What is released

part() { sed -n "s/^#define AUTOPAR_VERSION_$1 //p" include/autopar/version.hpp; }

changes=$(git status --porcelain)
[ -z "$changes" ] || fail "commit or remove these changes first:"$'\n'"$changes"
written=$(part MAJOR).$(part MINOR).$(part PATCH)
[ "$written" = "$version" ] || fail "include/autopar/version.hpp says $written: set it to $version and commit that"
grep -qxF "## $version" CHANGELOG.md || fail "CHANGELOG.md has no section '## $version'"
if git rev-parse --quiet --verify "refs/tags/$tag" >/dev/null; then fail "the tag $tag is there already"; fi

# ---------------------------------------------------------------- 2. Tests

if $run_tests; then bash cmake/quickstart.sh test; fi

# ---------------------------------------------------------------- 3. The archive

mkdir -p "$output"
git archive --format=tar.gz --prefix="$name/" --output="$output/$name.tar.gz" HEAD
(cd "$output" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
if $verify; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  tar -C "$folder" -xzf "$output/$name.tar.gz"
  (cd "$folder/$name" && bash cmake/quickstart.sh && bash cmake/quickstart.sh test)
fi

# ---------------------------------------------------------------- 4. The tag

git tag --annotate --message "autopar $version" "$tag"
cat "$output/$name.tar.gz.sha256"
echo "Archive: $output/$name.tar.gz"
echo "Tag:     $tag (git push origin $tag publishes it, git tag --delete $tag removes it)"
if ! $verify; then
  echo "Not verified. In a folder of its own these must pass:"
  echo "  tar -xzf $output/$name.tar.gz && cd $name"
  echo "  bash cmake/quickstart.sh"
  echo "  bash cmake/quickstart.sh test"
fi
