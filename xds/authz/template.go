package authz

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// oneSegment and anyRest are what templates of paths have in place of segments.
	oneSegment = "{*}"
	anyRest    = "{**}"
	// segmentChars are the characters that Envoy takes in other segments, besides letters
	// and digits (envoy/source/extensions/path/uri_template_lib).
	segmentChars = "-._~%!$&'()+,;:@="
	// maxTemplate is how long a template of Envoy may be (UriTemplateMatchConfig).
	maxTemplate = 256
)

// isTemplate tells whether a path is a template.
func isTemplate(path string) bool {
	return strings.Contains(path, oneSegment) || strings.Contains(path, anyRest)
}

// templatePermission matches paths with a template. Envoy refuses a whole listener for a
// template that it does not take, so each is checked here by Envoy's rules.
func templatePermission(path string) (*rbacv3.Permission, error) {
	if err := checkTemplate(path); err != nil {
		return nil, err
	}
	config, err := anypb.New(&uritemplatev3.UriTemplateMatchConfig{PathTemplate: envoyTemplate(path)})
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{
		UriTemplate: &corev3.TypedExtensionConfig{Name: "uri-template", TypedConfig: config},
	}}, err
}

// envoyTemplate is a template as Envoy writes it.
func envoyTemplate(path string) string {
	return strings.NewReplacer(oneSegment, "*", anyRest, "**").Replace(path)
}

func checkTemplate(path string) error {
	if len(envoyTemplate(path)) > maxTemplate {
		return fmt.Errorf("the template %q has more than %d bytes, without its braces", path, maxTemplate)
	}
	rest, rooted := strings.CutPrefix(path, "/")
	if !rooted {
		return fmt.Errorf("the template %q does not begin with a slash", path)
	}
	segments := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	ended := false
	for _, s := range segments {
		switch {
		case s == oneSegment || s == anyRest:
			if ended {
				return fmt.Errorf("the template %q has more after {**} than plain segments", path)
			}
			ended = s == anyRest
		case s == "" || strings.ContainsFunc(s, notInSegment):
			return fmt.Errorf("the template %q has the segment %q, which is neither plain text nor {*} nor {**}", path, s)
		}
	}
	return nil
}

func notInSegment(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	return !letter && !strings.ContainsRune(segmentChars, r)
}
