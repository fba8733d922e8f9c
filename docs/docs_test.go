package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// TestCodes holds the table of codes against the codes in the sources.
func TestCodes(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`"(FL[0-9]{4})"`)
	inSources := map[string]bool{}
	for _, path := range files(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, m := range declared.FindAllStringSubmatch(read(t, path), -1) {
			inSources[m[1]] = true
		}
	}
	if len(inSources) < 30 {
		t.Fatalf("found %d codes in the sources: this test looks for them in the wrong place", len(inSources))
	}
	row := regexp.MustCompile("(?m)^\\| `(FL[0-9]{4})` \\| .+ \\| .+ \\|$")
	onPage := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", "troubleshooting.md")), -1) {
		if onPage[m[1]] {
			t.Errorf("docs/troubleshooting.md explains %s twice", m[1])
		}
		onPage[m[1]] = true
	}
	for _, code := range slices.Sorted(maps.Keys(inSources)) {
		if !onPage[code] {
			t.Errorf("docs/troubleshooting.md has no row for %s", code)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(onPage)) {
		if !inSources[code] {
			t.Errorf("docs/troubleshooting.md explains %s, which nothing reports", code)
		}
	}
}

// TestFieldsNotInForce holds the table of fields that are not in force, with reasons, against the
// lists above it, which are made from the sources.
func TestFieldsNotInForce(t *testing.T) {
	t.Parallel()
	page := read(t, filepath.Join(root, "docs", "reference-fields.md"))
	lists, table, ok := strings.Cut(page, "\n## Not in force, and why\n")
	if !ok {
		t.Fatal("docs/reference-fields.md has no table of what is not in force")
	}
	table, _, _ = strings.Cut(table, "\n\nSome of these")
	field := regexp.MustCompile("`[^`]+`(: `[^`]+`)?")
	listed, explained := map[string]bool{}, map[string]bool{}
	kind := ""
	for line := range strings.Lines(lists) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "**"); ok {
			kind = strings.TrimSuffix(name, "**")
		}
		if list, ok := strings.CutPrefix(line, "- not in force: "); ok && kind != "MeshConfig" {
			for _, f := range field.FindAllString(list, -1) {
				listed[kind+" "+f] = true
			}
		}
	}
	if len(listed) == 0 {
		t.Fatal("no field is listed: this test looks for them in the wrong way")
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		kind, fields, ok := strings.Cut(strings.TrimPrefix(cells[0], "| "), " ")
		if !ok || len(cells) != 2 {
			continue
		}
		for _, f := range field.FindAllString(fields, -1) {
			explained[kind+" "+f] = true
		}
	}
	for _, f := range slices.Sorted(maps.Keys(listed)) {
		if !explained[f] {
			t.Errorf("docs/reference-fields.md does not say why %s is not in force", f)
		}
	}
	for _, f := range slices.Sorted(maps.Keys(explained)) {
		if !listed[f] {
			t.Errorf("docs/reference-fields.md says why %s is not in force, and it is", f)
		}
	}
}

// TestPageNamesTheAPI: the page of fields says which release of Istio's API it is about.
func TestPageNamesTheAPI(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`(?m)^\tistio\.io/api (v\S+)$`).FindStringSubmatch(read(t, filepath.Join(root, "go.mod")))
	if m == nil {
		t.Fatal("go.mod has no istio.io/api")
	}
	if want := "`istio.io/api` " + m[1] + "."; !strings.Contains(read(t, filepath.Join(root, "docs", "reference-fields.md")), want) {
		t.Errorf("docs/reference-fields.md does not say %s", want)
	}
}

// TestReadmeExceptions: what README's table of kinds excepts is not in force.
func TestReadmeExceptions(t *testing.T) {
	t.Parallel()
	_, reasons, _ := strings.Cut(read(t, filepath.Join(root, "docs", "reference-fields.md")), "\n## Not in force, and why\n")
	reasons, _, _ = strings.Cut(reasons, "\n\nSome of these")
	name := regexp.MustCompile("`([^`]+)`")
	found := 0
	for line := range strings.Lines(read(t, filepath.Join(root, "README.md"))) {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || !strings.Contains(cells[1], "works, except") {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			found++
			last := strings.ReplaceAll(m[1], ": ", "`: `") // a field and its value
			holds := slices.ContainsFunc(strings.Split(reasons, "\n"), func(row string) bool {
				kind, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " ")
				return kind != "" && strings.Contains(cells[0], kind) && (strings.Contains(row, "`"+last+"`") || strings.Contains(row, "."+last+"`"))
			})
			if !holds {
				t.Errorf("README.md excepts %s of%s, and docs/reference-fields.md does not say that it is not in force", m[1], strings.TrimPrefix(cells[0], "|"))
			}
		}
	}
	if found == 0 {
		t.Error("README.md excepts nothing: this test looks for it in the wrong way")
	}
}

// TestMetrics holds the names of metrics on the page against the sources.
func TestMetrics(t *testing.T) {
	t.Parallel()
	var sources strings.Builder
	for _, path := range files(t, ".go") {
		if !strings.HasSuffix(path, "_test.go") {
			sources.WriteString(read(t, path))
		}
	}
	// A name is written whole, behind a prefix that many share, or around a type.
	around := regexp.MustCompile(`"([a-z_]+_)" \+ [a-z]+ \+ "(_[a-z_]+)"`).FindAllStringSubmatch(sources.String(), -1)
	written := func(name string) bool {
		for _, m := range around {
			if strings.HasPrefix(name, m[1]) && strings.HasSuffix(name, m[2]) {
				return true
			}
		}
		if strings.Contains(sources.String(), `"`+name+`"`) {
			return true
		}
		for _, prefix := range []string{"fairlead_", "citadel_server_"} {
			if rest, ok := strings.CutPrefix(name, prefix); ok && strings.Contains(sources.String(), `("`+rest+`"`) {
				return true
			}
		}
		return false
	}
	// The reference has the tables; the guide names those that are worth an alert.
	table := read(t, filepath.Join(root, "docs", "reference-operations.md"))
	row := regexp.MustCompile("(?m)^\\| `(?:pilot|citadel|fairlead|istio)_[a-z_]+[`{]")
	if len(row.FindAllString(table, -1)) == 0 {
		t.Fatal("docs/reference-operations.md has no table of metrics")
	}
	named := regexp.MustCompile("`(?:[a-z]+\\()?((?:pilot|citadel|fairlead|istio)_[a-z_]+[a-z])[^a-z_.…]")
	for _, page := range []string{"operations.md", "reference-operations.md"} {
		for _, m := range named.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", page)), -1) {
			if !written(m[1]) {
				t.Errorf("docs/%s tells of the metric %s, which is nowhere", page, m[1])
			}
		}
	}
	made := regexp.MustCompile(`"((?:pilot|citadel|istio_agent|fairlead_[a-z]+)_[a-z_]+[a-z])"`)
	for _, m := range made.FindAllStringSubmatch(sources.String(), -1) {
		if !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("docs/reference-operations.md has no row for the metric %s", m[1])
		}
	}
}

// TestFlags holds the flags that the pages tell of against the sources.
func TestFlags(t *testing.T) {
	t.Parallel()
	var sources strings.Builder
	for _, path := range files(t, ".go") {
		if strings.HasPrefix(path, filepath.Join(root, "cmd")) && !strings.HasSuffix(path, "_test.go") {
			sources.WriteString(read(t, path))
		}
	}
	flag := regexp.MustCompile("`--([a-z]+(?:-[a-z]+)*)[` =]")
	sources.WriteString(`"help"`) // cobra's own
	found := 0
	for _, path := range files(t, ".md") {
		for _, m := range flag.FindAllStringSubmatch(read(t, path), -1) {
			found++
			if !strings.Contains(sources.String(), `"`+m[1]+`"`) {
				t.Errorf("%s tells of the flag --%s, which is nowhere", path, m[1])
			}
		}
	}
	if found < 50 {
		t.Errorf("found %d flags on the pages: this test looks for them in the wrong way", found)
	}
}

// TestLinks follows every link to a file of the project.
func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, path := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s: %s has no heading for #%s", path, file, anchor)
			}
		}
	}
}

// anchors are the names that a page's headings are linked by.
func anchors(page string) []string {
	var out []string
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			name := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			out = append(out, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return out
}

// files are the project's files with a suffix, without what is installed or made.
func files(t *testing.T, suffix string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "testdata"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, suffix):
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
