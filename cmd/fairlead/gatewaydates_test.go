package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayText is a Gateway of an own port, with more in its metadata or none.
func gatewayText(name, port, more string) string {
	return "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata:\n  # of the shop\n  name: " + name + "\n  namespace: shop\n" + more +
		"spec: {selector: {istio: gw}, servers: [{port: {number: " + port + ", name: tcp, protocol: TCP}, hosts: [\"*\"]}]}\n"
}

const oldDate = "  creationTimestamp: 2020-01-01T00:00:00Z\n"

var dateOfFile = regexp.MustCompile(`(?m)^  creationTimestamp: "([^"]+)"\n`)

// dateIn is the date in a text; empty if there is none. Without it, the text has to be the one of the author.
func dateIn(t *testing.T, text, author string) string {
	t.Helper()
	if got := dateOfFile.ReplaceAllString(text, ""); got != author {
		t.Fatalf("more than a date was written: %s", text)
	}
	if found := dateOfFile.FindStringSubmatch(text); found != nil {
		if at, err := time.Parse(time.RFC3339, found[1]); err != nil || time.Since(at) > time.Hour && at.Year() != 2020 {
			t.Fatalf("the date %q: %v", found[1], err)
		}
		return found[1]
	}
	return ""
}

// applied applies a text as a file of that name, and returns the file.
func applied(t *testing.T, dir, name, text string, words ...string) string {
	t.Helper()
	from := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := cli(t, "apply", from, "--config-dir", dir, "--wait", "0")
	if code != 0 {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(content), "...\n") // which apply writes
}

// TestApplyDatesNewGateways: a Gateway that is new gets a date, where all others have one, and keeps it. The author's
// file has none, and that is no difference.
func TestApplyDatesNewGateways(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	applied(t, dir, "first.yaml", gatewayText("first", "8999", oldDate))
	text := gatewayText("zebra", "9000", "")
	file := applied(t, dir, "zebra.yaml", text, "Gateway shop/zebra gets creationTimestamp", "Gateway shop/zebra created")
	first := dateIn(t, file, text)
	if first == "" {
		t.Fatal("the Gateway has no date")
	}
	if again := applied(t, dir, "zebra.yaml", text, "zebra.yaml: unchanged", "Gateway shop/zebra unchanged"); again != file {
		t.Errorf("a second apply changes it: %s", again)
	}
	edited := gatewayText("zebra", "9001", "")
	if got := dateIn(t, applied(t, dir, "zebra.yaml", edited, "Gateway shop/zebra changed"), edited); got != first {
		t.Errorf("after an edit the date is %q, was %q", got, first)
	}
	renamed := applied(t, dir, "other.yaml", edited, "removed "+filepath.Join(dir, "zebra.yaml"), "Gateway shop/zebra unchanged, was in")
	if got := dateIn(t, renamed, edited); got != first {
		t.Errorf("in another file the date is %q, was %q", got, first)
	}
	ahead := time.Now().Add(time.Minute).UTC().Truncate(time.Second) // by the clock of another machine
	applied(t, dir, "ahead.yaml", gatewayText("ahead", "9002", "  creationTimestamp: \""+ahead.Format(time.RFC3339)+"\"\n"))
	next := gatewayText("aardvark", "9003", "")
	if got := dateIn(t, applied(t, dir, "aardvark.yaml", next), next); got != ahead.Add(time.Second).Format(time.RFC3339) {
		t.Errorf("the date %q is not after all others, of which one is %v", got, ahead)
	}
}

// TestApplyDatesNothingBesideUndatedGateways: a date would put a new Gateway before those that serve.
func TestApplyDatesNothingBesideUndatedGateways(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serves := gatewayText("serves", "9000", "")
	if err := os.WriteFile(filepath.Join(dir, "serves.yaml"), []byte(serves), 0o600); err != nil {
		t.Fatal(err)
	}
	next := gatewayText("next", "9001", "")
	if got := applied(t, dir, "next.yaml", next); got != next {
		t.Errorf("it became %s", got)
	}
	if got := applied(t, dir, "serves.yaml", serves); got != serves {
		t.Errorf("one that serves became %s", got)
	}
	// With a date in each of the others, the next one gets one.
	for _, name := range []string{"serves", "next"} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(gatewayText(name, map[string]string{"serves": "9000", "next": "9001"}[name], oldDate)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	third := gatewayText("third", "9002", "")
	if got := applied(t, dir, "third.yaml", third, "gets creationTimestamp"); dateIn(t, got, third) == "" {
		t.Errorf("it has no date: %s", got)
	}
}

// TestRefusedLinesAreOfTheAuthor: a fault is reported at the line that the author's file has.
func TestRefusedLinesAreOfTheAuthor(t *testing.T) {
	t.Parallel()
	text := gatewayText("zebra", "9000", "") + "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: shop}\nspec: {egrss: []}\n"
	from, dir := filepath.Join(t.TempDir(), "f.yaml"), t.TempDir()
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(text, "egrss")
	line := strings.Count(before, "\n") + 1
	code, out, _ := cli(t, "apply", from, "--config-dir", dir, "--wait", "0")
	if want := filepath.Join(dir, "f.yaml") + ":12:"; code != 1 || line != 12 || !strings.Contains(out, want) {
		t.Errorf("%d, line %d, no %q in\n%s", code, line, want, out)
	}
}

// testPushDates: of keys as of files. What was pushed is no difference to the author's files, for all commands.
func testPushDates(p *place) {
	p.t.Helper()
	text := gatewayText("zebra", "9000", "")
	p.file("zebra.yaml", text)
	p.run(0, []string{"push", "--config-dir", p.t.TempDir()}, "Gateway shop/zebra gets creationTimestamp", "pushed 1 key")
	key := p.keys()["zebra.yaml"]
	first := dateIn(p.t, key, text)
	if first == "" {
		p.t.Fatal("the Gateway has no date")
	}
	p.run(0, []string{"diff"})
	p.run(0, []string{"push"}, "the keys below", "are as the files: 1 key")
	p.run(0, []string{"pull"}, "1 file as in Consul already")
	if got := p.files()["zebra.yaml"]; got != text {
		p.t.Errorf("a pull made the file %s", got)
	}

	edited := gatewayText("zebra", "9001", "")
	p.file("zebra.yaml", edited)
	if out := p.run(1, []string{"diff"}, "Gateway shop/zebra changed"); strings.Contains(out, "-  creationTimestamp") {
		p.t.Errorf("the date is a difference: %s", out)
	}
	p.run(0, []string{"push"}, "pushed 1 key")
	if got := dateIn(p.t, p.keys()["zebra.yaml"], edited); got != first {
		p.t.Errorf("after an edit the date is %q, was %q", got, first)
	}

	// Somebody else changes the key. The file was not edited since, so a pull replaces it.
	p.put("zebra.yaml", strings.Replace(p.keys()["zebra.yaml"], "9001", "9002", 1))
	p.run(0, []string{"pull"}, "zebra.yaml: updated")
	p.run(0, []string{"diff"})

	// Where a key has none, or a directory that is named has none, a new one gets none.
	p.put("undated.yaml", gatewayText("undated", "9003", ""))
	p.file("next.yaml", gatewayText("next", "9004", ""))
	p.run(0, []string{"push"}, "pushed 1 key")
	if got := p.keys()["next.yaml"]; got != gatewayText("next", "9004", "") {
		p.t.Errorf("beside an undated one it became %s", got)
	}
}

// TestPushDatesNewGateways runs testPushDates, and a push whose other directory has a Gateway without a date.
func TestPushDatesNewGateways(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	testPushDates(newPlace(t, a, "dates"))
	p := newPlace(t, a, "beside")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(gatewayText("a", "9000", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	text := gatewayText("b", "9001", "")
	p.file("b.yaml", text)
	p.run(0, []string{"push", "--config-dir", dir}, "pushed 1 key")
	if got := p.keys()["b.yaml"]; got != text {
		t.Errorf("it became %s", got)
	}
}

// TestDatesOfSeveralGateways: those that are new together have one date, and those with a date of their own keep it.
func TestDatesOfSeveralGateways(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 5, time.UTC)
	d := newGatewayDates(manifest.Options{})
	d.have([]byte(gatewayText("old", "1000", oldDate)))
	texts := map[string][]byte{
		"a": []byte(gatewayText("a", "1001", "")), "b": []byte(gatewayText("b", "1002", "")), "c": []byte(gatewayText("c", "1003", oldDate)), "old": []byte(gatewayText("old", "1004", "")),
	}
	d.write(texts, now)
	got := map[string]time.Time{}
	for _, text := range texts {
		for key, at := range manifest.GatewayDates(manifest.Options{}, text) {
			got[key.Name] = at
		}
	}
	old, second := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), now.Truncate(time.Second)
	for name, want := range map[string]time.Time{"a": second, "b": second, "c": old, "old": old} {
		if !got[name].Equal(want) {
			t.Errorf("%s has %v, want %v", name, got[name], want)
		}
	}
	if len(d.created) != 2 || d.created[mesh.Key{Kind: mesh.KindGateway, Namespace: "shop", Name: "a"}] != second {
		t.Errorf("created %v", d.created)
	}
}

// TestApplyRefusesAGatewayThatTakesAPort: neither of two Gateways has a date, and the name of the new one comes first.
func TestApplyRefusesAGatewayThatTakesAPort(t *testing.T) {
	t.Parallel()
	dir, from := t.TempDir(), filepath.Join(t.TempDir(), "aardvark.yaml")
	edge := "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: edge, namespace: shop}\nspec: {address: 10.0.0.9, serviceAccount: edge, labels: {istio: gw}}\n"
	for path, text := range map[string]string{filepath.Join(dir, "edge.yaml"): edge, filepath.Join(dir, "zebra.yaml"): gatewayText("zebra", "9000", ""), from: gatewayText("aardvark", "9000", "")} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errs := cli(t, "apply", from, "--config-dir", dir, "--wait", "0")
	for _, word := range []string{
		"breaking gateway-server Gateway shop/zebra", filepath.Join(dir, "zebra.yaml") + ":1:1", "Gateway shop/aardvark, " + filepath.Join(dir, "aardvark.yaml") + ":1:1, whose name comes first",
		"write `creationTimestamp: \"2000-01-01T00:00:00Z\"` into the metadata of Gateway shop/zebra",
	} {
		if code != 1 || !strings.Contains(out, word) {
			t.Errorf("%d, no %q in\n%s%s", code, word, out, errs)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "aardvark.yaml")); err == nil {
		t.Error("it was written")
	}
	// With a date in the one that serves, the new one gets one, and is itself what is left out.
	if err := os.WriteFile(filepath.Join(dir, "zebra.yaml"), []byte(gatewayText("zebra", "9000", oldDate)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := cli(t, "apply", from, "--config-dir", dir, "--wait", "0"); code != 1 || !strings.Contains(out, "breaking gateway-server Gateway shop/aardvark") {
		t.Errorf("%d\n%s", code, out)
	}
}

// TestFirstGatewayGetsNoDate: Gateways of other sources may have none, and one with a date would come before these.
// With the other directories, it is known whether it would.
func TestFirstGatewayGetsNoDate(t *testing.T) {
	t.Parallel()
	text, undated := gatewayText("new", "9000", ""), t.TempDir()
	if err := os.WriteFile(filepath.Join(undated, "serves.yaml"), []byte(gatewayText("serves", "9000", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args  []string
		dated bool
	}{
		"alone":              {nil, false},
		"beside_undated":     {[]string{"--other-config-dir", undated}, false},
		"beside_none_at_all": {[]string{"--other-config-dir", t.TempDir()}, true},
	} {
		dir, from := t.TempDir(), filepath.Join(t.TempDir(), "new.yaml")
		if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := cli(t, append([]string{"apply", from, "--config-dir", dir, "--wait", "0"}, c.args...)...)
		got, err := os.ReadFile(filepath.Join(dir, "new.yaml"))
		if dated := dateOfFile.Match(got); code != 0 || err != nil || dated != c.dated {
			t.Errorf("%s: %d, %v, dated %t\n%s%s", name, code, err, dated, out, errs)
		}
	}
}
