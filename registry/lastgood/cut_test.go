package lastgood

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// policyDocuments are the documents of the examples and of the golden meshes that have objects in
// force: those that restrict, and others.
func policyDocuments(t *testing.T) (restricting, others []string) {
	t.Helper()
	for _, root := range []string{"../../examples", "../../internal/istiod/testdata"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for doc := range strings.SplitSeq(string(content), "\n---\n") {
				doc = strings.TrimPrefix(strings.TrimRight(doc, "\n"), "---\n") + "\n"
				v := NextVersion(nil, NewBlob([]byte(doc)), Manifests(manifest.Options{}, path, []byte(doc)), time.Time{})
				if len(doc) > 500 || len(v.live) != 1 || len(v.seen) != 1 {
					continue
				}
				if restricts(v.live[v.seen[0].Key].Fragment) {
					restricting = append(restricting, doc)
				} else {
					others = append(others, doc)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(restricting) < 40 || len(others) < 40 {
		t.Fatalf("there are %d documents that restrict and %d others: this test looks in the wrong place", len(restricting), len(others))
	}
	return restricting, others
}

// compose makes a file of two to four documents, at least one of which restricts. Some have
// CRLF, a BOM, comments with more than ASCII, or a mark in their middle.
func compose(rng *rand.Rand, restricting, others []string) string {
	docs := []string{restricting[rng.IntN(len(restricting))]}
	for range 1 + rng.IntN(3) {
		list := others
		if rng.IntN(2) == 0 {
			list = restricting
		}
		docs = append(docs, list[rng.IntN(len(list))])
	}
	rng.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	separators := []string{"---\n", "---\n# Wer darf – und wer nicht: ✓ é\n", "...\n---\n", "\n---\n", "--- # next\n"}
	var text strings.Builder
	if rng.IntN(4) == 0 {
		text.WriteString("# of the team\n---\n")
	}
	for i, doc := range docs {
		if i > 0 {
			text.WriteString(separators[rng.IntN(len(separators))])
		}
		text.WriteString(doc)
	}
	out := text.String()
	switch rng.IntN(6) {
	case 0:
		out = strings.ReplaceAll(out, "\n", "\r\n")
	case 1:
		out = "\xef\xbb\xbf" + out
	}
	return out
}

// textSet is a set with one text, and what it restricts.
type textSet struct {
	set   *Set
	whole *Version
	want  map[mesh.Key]mesh.Hash
}

const cutPath = "/r/policies.yaml"

func newTextSet(content []byte) *textSet {
	s := &textSet{set: NewSet("files", Words{Text: "file", Name: "path"})}
	s.put(content, Manifests(manifest.Options{Source: "files"}, cutPath, content), time.Unix(0, 0))
	s.whole = s.set.Text(cutPath).V
	s.want = s.restrictions()
	return s
}

func (s *textSet) put(content []byte, text Decoded, now time.Time) *Version {
	v := NextVersion(s.version(), NewBlob(content), text, now)
	s.set.Put(&Text{Path: cutPath, Root: "/r", Rel: "policies.yaml", V: v})
	s.set.Yield()
	return v
}

func (s *textSet) version() *Version {
	if t := s.set.Text(cutPath); t != nil {
		return t.V
	}
	return nil
}

// restrictions are the objects in force that restrict.
func (s *textSet) restrictions() map[mesh.Key]mesh.Hash {
	out := map[mesh.Key]mesh.Hash{}
	f := s.set.Assemble().Fragment
	for _, o := range f.AuthorizationPolicies {
		out[o.Key] = o.Hash
	}
	for _, o := range f.RequestAuthentications {
		out[o.Key] = o.Hash
	}
	for _, o := range f.PeerAuthentications {
		out[o.Key] = o.Hash
	}
	for _, o := range f.Sidecars {
		out[o.Key] = o.Hash
	}
	for _, o := range f.Unenforced {
		out[o.Key] = o.Hash
	}
	return out
}

// keeps reports whether everything that restricted is in force as it was.
func (s *textSet) keeps() bool {
	now := s.restrictions()
	for key, hash := range s.want {
		if now[key] != hash {
			return false
		}
	}
	return true
}

// restart is the set that a restart makes of the state directory's, and of the file as it is.
func (s *textSet) restart(now time.Time) {
	var next *Set
	for _, list := range s.set.entries(map[int]bool{shardOf("/r", "policies.yaml"): true}) {
		for _, e := range list {
			next = NewSet("files", s.set.words)
			v := e.Revive(func(b *Blob) Decoded { return Manifests(manifest.Options{Source: "files"}, cutPath, b.Content) }, now)
			next.Restore(&Text{Path: cutPath, Root: e.Root, Rel: e.Rel, V: v})
		}
	}
	s.set = next
}

// TestEveryCut cuts 100 files after each of their bytes. With the mark at the end nothing that
// restricts is lost or changed by it, also over a restart; without it only by cuts behind a line.
func TestEveryCut(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	restricting, others := policyDocuments(t)
	var cuts, lost atomic.Int64
	t.Run("files", func(t *testing.T) {
		for i := range 100 {
			if testing.Short() && i%10 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("file_%02d", i), func(t *testing.T) {
				t.Parallel()
				content := compose(rand.New(rand.NewPCG(uint64(i), 31)), restricting, others)
				n, m := cutEverywhere(t, content)
				cuts.Add(int64(n))
				lost.Add(int64(m))
			})
		}
	})
	share := 100 * float64(lost.Load()) / float64(cuts.Load())
	t.Logf("without the mark, %d of %d cuts change something that restricts: %.2f %%", lost.Load(), cuts.Load(), share)
	if share > 2 {
		t.Errorf("%.2f %% of the cuts of files without the mark change something that restricts, want at most 2 %%", share)
	}
}

// cutEverywhere counts the cuts of a text, and those that change something that restricts where
// the text has no mark.
func cutEverywhere(t *testing.T, content string) (cuts, lost int) {
	t.Helper()
	marked := newTextSet([]byte(content + manifest.EndMark + "\n"))
	plain := newTextSet([]byte(content))
	if len(marked.want) == 0 {
		t.Fatal("the text restricts nothing")
	}
	for n := range len(content) + len(manifest.EndMark) {
		now := time.Unix(int64(n), 0)
		part := []byte(content + manifest.EndMark + "\n")[:n]
		text := Manifests(manifest.Options{Source: "files"}, cutPath, part)
		marked.put(part, text, now)
		if !marked.keeps() {
			t.Fatalf("with the mark, a cut after %d bytes loses something:\n%q", n, part)
		}
		if n%97 == 0 {
			if marked.restart(now); !marked.keeps() {
				t.Fatalf("with the mark, a restart after a cut after %d bytes loses something:\n%q", n, part)
			}
		}
		if n >= len(content) {
			continue
		}
		cuts++
		plain.set.Put(&Text{Path: cutPath, Root: "/r", Rel: "policies.yaml", V: plain.whole})
		plain.put(part, text, now)
		if plain.keeps() {
			continue
		}
		if !bytes.HasSuffix(part, []byte("\n")) {
			t.Fatalf("a cut within a line, after %d bytes, loses something:\n%q", n, part)
		}
		lost++
	}
	return cuts, lost
}

const twoPolicies = `# who may not
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: one, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: ["/one"]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: two, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: ["/two"]}}]}]}
`

// TestWhatRemovesAnObject holds each sort of edit against the rule: an object leaves by a
// deliberate act.
func TestWhatRemovesAnObject(t *testing.T) {
	t.Parallel()
	first, second, _ := strings.Cut(twoPolicies, "---\n")
	const foreign = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
	type step struct {
		content string
		// want are the names in force.
		want string
		// fault is a code that the text must have; empty means that there is no error.
		fault manifest.Code
	}
	for name, steps := range map[string][]step{
		"not_yaml":             {{first + "---\n\t!", "one two", manifest.CodeSyntax}, {first, "one", ""}},
		"no_object":            {{first + "---\nap\n", "one two", manifest.CodeKind}, {first, "one", ""}},
		"no_kind":              {{first + "---\napiVersion: security.istio.io/v1\n", "one two", manifest.CodeKind}},
		"no_name":              {{first + "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n", "one two", manifest.CodeMetadata}},
		"unknown_kind":         {{first + "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPol\nmetadata: {name: x}\n", "one two", manifest.CodeKind}},
		"wrong_group":          {{first + "---\napiVersion: v1\nkind: AuthorizationPolicy\nmetadata: {name: x}\n", "one two", manifest.CodeKind}},
		"bad_name":             {{first + "---\n" + strings.Replace(second, "name: two", "name: TWO", 1), "one two", manifest.CodeMetadata}},
		"bad_namespace":        {{first + "---\n" + strings.Replace(second, "namespace: shop", "namespace: Shop", 1), "one two", manifest.CodeMetadata}},
		"error_in_the_last":    {{strings.Replace(first, "DENY", "NEVER", 1), "one two", manifest.CodeEnum}},
		"error_in_another":     {{strings.Replace(first, "DENY", "NEVER", 1) + "---\n" + strings.Replace(second, "two", "new", 1), "new one", manifest.CodeEnum}},
		"list_without_items":   {{"apiVersion: v1\nkind: List\n", "one two", manifest.CodeKind}},
		"foreign_last":         {{first + "---\n" + foreign, "one", manifest.CodeKind}},
		"foreign_gateway":      {{first + "---\n" + strings.NewReplacer("apps/v1", "gateway.networking.k8s.io/v1", "Deployment", "Gateway").Replace(foreign), "one", manifest.CodeKind}},
		"foreign_unknown":      {{first + "---\n" + strings.NewReplacer("apps/v1", "cert-manager.io/v1", "Deployment", "Certificate").Replace(foreign), "one", manifest.CodeKind}},
		"not_built_last":       {{first + "---\n" + notBuilt, "one", ""}},
		"blank":                {{"", "one two", manifest.CodeBlank}, {" \n\n", "one two", manifest.CodeBlank}, {first, "one", ""}},
		"separators":           {{"---\n", "one two", manifest.CodeBlank}, {"\xef\xbb\xbf%YAML 1.2\n---\n", "one two", manifest.CodeBlank}},
		"zeroes":               {{strings.Repeat("\x00", 100), "one two", manifest.CodeSyntax}},
		"only_comments":        {{"# nobody\n", "", ""}},
		"only_the_mark":        {{"...\n", "", ""}},
		"comment_and_mark":     {{"# nobody\n...\n", "", ""}},
		"comments_cut_off":     {{"# nob", "one two", CodeCut}, {"# nobody\n", "", ""}},
		"half_a_rune":          {{first + "# \xe2\x9c", "one two", manifest.CodeSyntax}},
		"half_a_separator":     {{first + "--", "one two", manifest.CodeSyntax}},
		"separator":            {{first + "---", "one two", CodeCut}, {first + "---\n", "one", ""}},
		"within_a_name":        {{first + "---\n" + second[:strings.Index(second, "two")+1], "one two", manifest.CodeSyntax}},
		"no_newline":           {{strings.TrimRight(first, "\n"), "one two", CodeCut}, {first, "one", ""}},
		"no_newline_is_all":    {{strings.TrimRight(twoPolicies, "\n"), "one two", CodeCut}, {twoPolicies, "one two", ""}},
		"cut_twice":            {{strings.TrimRight(twoPolicies, "\n"), "one two", CodeCut}, {strings.TrimRight(first, "\n"), "one two", CodeCut}, {first, "one", ""}},
		"cut_and_edited":       {{strings.Replace(first, "one", "new", 1) + "---\n" + strings.TrimRight(strings.Replace(second, "two", "last", 1), "\n"), "new one two", CodeCut}},
		"mark_added":           {{first + "...\n", "one", ""}, {twoPolicies, "one", CodeCut}, {twoPolicies + "...\n", "one two", ""}},
		"mark_and_no_newline":  {{first + "...", "one two", CodeCut}, {first + "...\n", "one", ""}},
		"mark_and_comment":     {{twoPolicies + "... # end\n", "one two", ""}, {first + "...\r\n\r\n", "one", ""}},
		"mark_lost":            {{twoPolicies + "...\n", "one two", ""}, {first, "one two", CodeCut}, {first + "..", "one two", manifest.CodeSyntax}, {first + "...\n", "one", ""}},
		"mark_in_the_middle":   {{first + "...\n---\n" + second + "...\n", "one two", ""}, {first + "...\n", "one two", CodeCut}, {first + "# the other is gone\n...\n", "one", ""}},
		"mark_then_comment":    {{first + "...\n# the other\n---\n" + second + "...\n", "one two", ""}, {first + "...\n", "one two", CodeCut}, {first + "# the other is gone\n...\n", "one", ""}},
		"comments_go":          {{twoPolicies + "...\n# an end\n...\n", "one two", ""}, {twoPolicies + "...\n", "one two", ""}},
		"only_a_comment":       {{twoPolicies + "...\n", "one two", ""}, {"# none\n", "one two", CodeCut}, {"# none\n...\n", "", ""}},
		"null":                 {{"null\n", "one two", manifest.CodeBlank}, {"--- # none\n", "", ""}},
		"blank_behind_mark":    {{twoPolicies + "...\n\n\n", "one two", ""}, {twoPolicies + "...\n", "one two", ""}, {first + "...\n", "one", ""}},
		"never_a_newline":      {{strings.TrimRight(twoPolicies, "\n"), "one two", CodeCut}},
		"blank_then_cut":       {{"", "one two", manifest.CodeBlank}, {strings.TrimRight(first, "\n"), "one two", CodeCut}},
		"error_then_cut":       {{first + "---\nap\n", "one two", manifest.CodeKind}, {strings.TrimRight(first, "\n"), "one two", CodeCut}, {first, "one", ""}},
		"whole_after_an_error": {{first + "---\n: ]\n", "one two", manifest.CodeSyntax}, {twoPolicies, "one two", ""}},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restarts_%v", name, restarts), func(t *testing.T) {
				t.Parallel()
				s := newTextSet([]byte(twoPolicies))
				if restarts {
					s.restart(time.Unix(0, 0))
				}
				for i, step := range steps {
					content := []byte(step.content)
					s.put(content, Manifests(manifest.Options{Source: "files"}, cutPath, content), time.Unix(int64(i), 0))
					for range 3 {
						s.expect(t, i, step.want, step.fault)
						if !restarts || step.want == "" { // nothing is on disk of what gives nothing
							break
						}
						s.restart(time.Unix(int64(i), 0))
					}
				}
			})
		}
	}
}

// notBuilt is valid, and this build does not implement it.
const notBuilt = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: filter, namespace: shop}
spec: {}
`

func (s *textSet) expect(t *testing.T, step int, want string, code manifest.Code) {
	t.Helper()
	made := s.set.Assemble()
	var names []string
	for _, p := range made.Fragment.AuthorizationPolicies {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != want {
		t.Errorf("step %d: %q is in force, want %q", step, got, want)
	}
	has := slices.ContainsFunc(made.Faults, func(f manifest.Fault) bool { return f.Code == code })
	wrong := slices.ContainsFunc(made.Faults, func(f manifest.Fault) bool {
		return f.Severity == manifest.Error && f.Code != manifest.CodeNotInForce
	})
	if code != "" && !has || code == "" && wrong {
		t.Errorf("step %d: faults are %v, want one of %q", step, made.Faults, code)
	}
	for _, f := range made.Faults {
		if f.Origin.Path != cutPath {
			t.Errorf("step %d: %v is nowhere", step, f)
		}
		if f.Code == CodeCut && (f.Origin.Line == 0 || !strings.Contains(f.Message, "if this is meant")) {
			t.Errorf("step %d: %v does not say what to do", step, f)
		}
	}
}

// TestReleaseOfACutText: a person says that the text is whole, and it is, also after a restart.
func TestReleaseOfACutText(t *testing.T) {
	t.Parallel()
	s := newTextSet([]byte(twoPolicies + "...\n"))
	first, _, _ := strings.Cut(twoPolicies, "---\n")
	content := []byte(strings.TrimRight(first, "\n"))
	text := Manifests(manifest.Options{Source: "files"}, cutPath, content)
	if v := s.put(content, text, time.Unix(1, 0)); !v.Cut() {
		t.Fatal("the text is not cut off")
	}
	s.expect(t, 0, "one two", CodeCut)
	s.set.Put(&Text{Path: cutPath, Root: "/r", Rel: "policies.yaml", V: s.version().Release(text, time.Unix(2, 0))})
	s.expect(t, 1, "one", "")
	s.restart(time.Unix(3, 0))
	s.expect(t, 2, "one", "")
}

// TestTextWithoutNewlines: a text that never ended with a newline has no fault, whatever it loses.
func TestTextWithoutNewlines(t *testing.T) {
	t.Parallel()
	s := newTextSet([]byte(strings.TrimRight(twoPolicies, "\n")))
	s.expect(t, 0, "one two", "")
	first, _, _ := strings.Cut(twoPolicies, "---\n")
	content := []byte(strings.TrimRight(first, "\n"))
	s.put(content, Manifests(manifest.Options{Source: "files"}, cutPath, content), time.Unix(1, 0))
	s.expect(t, 1, "one", "")
}
