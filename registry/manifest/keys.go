package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/pki/jwks"
)

// inlineKeys are the key sets that are written in the rules of a RequestAuthentication, one for
// each rule, in the only form that an Envoy gets. It is empty for a rule without such keys, and
// for one of which no key can be used.
func inlineKeys(spec *security.RequestAuthentication) []string {
	out := make([]string, len(spec.GetJwtRules()))
	for i, rule := range spec.GetJwtRules() {
		if rule.GetJwks() == "" {
			continue
		}
		if set, _, err := jwks.Parse([]byte(rule.GetJwks())); err == nil {
			out[i] = set.JSON
		}
	}
	return out
}

// tokens judges a rule for tokens.
func (u unfitCheck) tokens(rule *security.JWTRule, at string) {
	texts := proto.CloneOf(rule)
	texts.Jwks = "" // it is read, and written anew
	u.strings(texts.ProtoReflect(), at)
	if h := rule.GetOutputPayloadToHeader(); h != "" {
		u.outputHeader(h, at+".outputPayloadToHeader")
	}
	for i, h := range rule.GetOutputClaimToHeaders() {
		u.outputHeader(h.GetHeader(), fmt.Sprintf("%s.outputClaimToHeaders[%d].header", at, i))
	}
	if rule.GetJwks() == "" {
		return
	}
	if _, _, err := jwks.Parse([]byte(rule.GetJwks())); err != nil && !errors.Is(err, jwks.ErrNoKeys) {
		u.report(at+".jwks", err.Error())
	}
}

// outputHeader judges a header that Envoy removes from each request, and writes what a token says
// into. Istio's webhook lets all names of outputPayloadToHeader pass.
func (u unfitCheck) outputHeader(name, at string) {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		u.report(at, fmt.Sprintf("%q is not a header name; Envoy would refuse requests with it", name))
	// Envoy takes host for the pseudo-header :authority.
	case slices.ContainsFunc([]string{"host", "content-length", "transfer-encoding"}, func(h string) bool { return strings.EqualFold(h, name) }):
		u.report(at, fmt.Sprintf("a token must not set %q, which says where a request goes or where it ends; name another header", name))
	}
}

// warnKeys warns of keys that are left out, and of rules without any.
func warnKeys(o *Object, warnings *reporter) {
	spec, ok := o.Spec.(*security.RequestAuthentication)
	if !ok {
		return
	}
	const refused = "tokens of the issuer are refused"
	for i, rule := range spec.GetJwtRules() {
		at := fmt.Sprintf("spec.jwtRules[%d]", i)
		warn := func(field, why string) {
			warnings.warn(CodeNotInForce, o.root.Nearest(at+field), at+field, why)
		}
		switch {
		case rule.GetJwks() != "":
			_, unusable, err := jwks.Parse([]byte(rule.GetJwks()))
			switch {
			case errors.Is(err, jwks.ErrNoKeys):
				warn(".jwks", err.Error()+"; "+refused)
			case err != nil: // the object is kept out
			case len(unusable) > 0:
				warn(".jwks", "some keys are left out, and tokens that are signed with them are refused: "+reasonsOf(unusable))
			}
		case rule.GetJwksUri() == "" && !isWeb(rule.GetIssuer()):
			warn(".issuer", "no keys can be found: the issuer is not a URL at which its OpenID configuration could be; write jwks or jwksUri; until then "+refused)
		}
	}
}

func reasonsOf(list []jwks.Unusable) string {
	texts := make([]string, len(list))
	for i, u := range list {
		texts[i] = u.String()
	}
	return strings.Join(texts, "; ")
}

// isWeb reports whether a text is a URL of the web.
func isWeb(s string) bool {
	return slices.ContainsFunc([]string{"https://", "http://"}, func(scheme string) bool { return strings.HasPrefix(s, scheme) })
}
