package authz_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// question is a request with the answer that Istio's documentation and sources promise.
type question struct {
	request `yaml:",inline"`
	// Want is "allow" or "deny".
	Want string `yaml:"want"`
	// Joined is the answer of an Envoy that joins several headers of a name, if it differs.
	Joined string `yaml:"joined"`
	// By is the name of the policy that denies; nil means that it is not asked.
	By *string `yaml:"by"`
	// Shadows are the policies that match among those that are tried out.
	Shadows map[string]string `yaml:"shadows"`
	// Seen is the path that rules see, where Envoy normalizes it.
	Seen string `yaml:"seen"`
}

func (q question) String() string {
	text, err := yaml.Marshal(q.request)
	if err != nil {
		return err.Error()
	}
	var said []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(strings.TrimSpace(line), `""`) && !strings.HasSuffix(strings.TrimSpace(line), "{}") && !strings.Contains(line, ": false") {
			said = append(said, strings.TrimSpace(line))
		}
	}
	return strings.Join(said, ", ")
}

// caseFile is a file of testdata/cases: policies, and requests with their answers.
type caseFile struct {
	rules     ruleset
	questions []question
}

func readCases(tb testing.TB, joins bool) map[string]caseFile {
	tb.Helper()
	paths, err := filepath.Glob("testdata/cases/*.txtar")
	fatalIf(tb, err, "listing")
	out := map[string]caseFile{}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(tb, err, "reading "+path)
		in := map[string]string{}
		for _, f := range a.Files {
			in[f.Name] = string(f.Data)
		}
		o := readOptions(tb, in["options.yaml"])
		o.JoinsHeaders = joins
		c := caseFile{rules: rulesOf(readPolicies(tb, in["policies.yaml"]), o)}
		d := yaml.NewDecoder(strings.NewReader(in["requests.yaml"]))
		d.KnownFields(true)
		fatalIf(tb, d.Decode(&c.questions), "decoding requests of "+path)
		out[strings.TrimSuffix(filepath.Base(path), ".txtar")] = c
	}
	if len(out) == 0 {
		tb.Fatal("there are no cases")
	}
	return out
}

// TestCasesAskBothWays has each file of cases allow something and deny something, unless it
// is about all or nothing.
func TestCasesAskBothWays(t *testing.T) {
	t.Parallel()
	oneWay := map[string]bool{
		"nothing": true, "no_spec": true, "everything": true, "deny_everything": true, "deny_nothing": true, "no_policy": true,
		"audit_alone": true, "dry_run": true, "unknown_action": true,
	}
	asked := 0
	for name, c := range readCases(t, false) {
		wants := map[string]int{}
		for _, q := range c.questions {
			wants[q.Want]++
			asked++
		}
		if wants["allow"]+wants["deny"] != len(c.questions) || (len(wants) == 1) != oneWay[name] {
			t.Errorf("%s wants %v", name, wants)
		}
	}
	if asked < 150 {
		t.Errorf("%d requests are asked: want at least 150", asked)
	}
}

// check compares an answer with what is wanted.
func (q question) check(got answer, joins bool) error {
	want := q.Want
	if joins && q.Joined != "" {
		want = q.Joined
	}
	if got.Allowed != (want == "allow") {
		return fmt.Errorf("%v: got allowed %v (denied by %q), want %s", q, got.Allowed, got.Policy, want)
	}
	if q.By != nil && got.Policy != *q.By {
		return fmt.Errorf("%v: denied by %q, want %q", q, got.Policy, *q.By)
	}
	if diff := cmp.Diff(q.Shadows, got.Shadows); diff != "" && len(q.Shadows)+len(got.Shadows) > 0 {
		return fmt.Errorf("%v: rules that are tried out (-want +got):\n%s", q, diff)
	}
	return nil
}

// TestJudgeAnswersCases asks the judge all cases.
func TestJudgeAnswersCases(t *testing.T) {
	t.Parallel()
	for _, joins := range []bool{false, true} {
		for name, c := range readCases(t, joins) {
			t.Run(fmt.Sprintf("joins_%v/%s", joins, name), func(t *testing.T) {
				t.Parallel()
				for _, q := range c.questions {
					r := q.request
					if q.Seen != "" {
						r.Path = q.Seen
					}
					if err := q.check(judged(t, c.rules, r), joins); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// judged asks the judge in place of an Envoy.
func judged(tb testing.TB, s ruleset, r request) answer {
	tb.Helper()
	rules := s.HTTP
	if r.TCP {
		rules = s.TCP
	}
	subject := r.subject(tb, s.joins)
	var chain []*rbacv3.RBAC
	for _, set := range rules.InOrder() {
		chain = append(chain, set.Enforced)
	}
	v, err := judge.Decide(chain, subject)
	fatalIf(tb, err, "judging")
	got := answer{Allowed: v.Allowed, Shadows: map[string]string{}}
	if !v.Allowed {
		got.Policy = v.Policy
		return got
	}
	for action, set := range map[string]authz.Set{"allow": rules.Allow, "deny": rules.Deny} {
		if set.Shadow == nil || r.TCP {
			continue
		}
		shadow, err := judge.Evaluate(set.Shadow, subject)
		fatalIf(tb, err, "judging")
		if shadow.Policy != "" {
			got.Shadows[action] = shadow.Policy
		}
	}
	return got
}

// TestEnvoysAnswerCases asks real Envoys all cases, of every release that is supported.
func TestEnvoysAnswerCases(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			cases, sets := readCases(t, joinsHeaders(version)), map[string]ruleset{}
			for name, c := range cases {
				sets[name] = c.rules
			}
			l := newLab(t, version, sets)
			for name, c := range cases {
				for _, q := range c.questions {
					if strings.Contains(q.Source, ":") && !hasIPv6() {
						t.Logf("%s: %v is not asked, for want of IPv6", name, q)
						continue
					}
					got, err := l.ask(t, name, q.request)
					if err == nil {
						err = q.check(got, joinsHeaders(version))
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
		})
	}
}

// each runs f for all of a list, several at a time, and returns the first error.
func each[T any](list []T, f func(T) error) error {
	const atATime = 4
	var wg sync.WaitGroup
	errs := make(chan error, len(list))
	next := make(chan T)
	for range atATime {
		wg.Go(func() {
			for one := range next {
				if err := f(one); err != nil {
					errs <- err
				}
			}
		})
	}
	for _, one := range list {
		next <- one
	}
	close(next)
	wg.Wait()
	close(errs)
	return <-errs
}
