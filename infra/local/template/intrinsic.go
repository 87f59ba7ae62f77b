package template

import (
	"fmt"
	"regexp"
	"strings"
)

// pseudo are CloudFormation's own parameters, as they are in the account that
// local servers pretend to be.
var pseudo = map[string]string{
	"AWS::AccountId": "000000000000",
	"AWS::Partition": "aws",
	"AWS::Region":    "us-east-1",
	"AWS::URLSuffix": "amazonaws.com",
}

// text makes a string of a value.
// https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/intrinsic-function-reference.html
func (t *Template) text(value any, resolve Resolve) (string, error) {
	if text, ok := value.(string); ok {
		return text, nil
	}
	object, ok := value.(map[string]any)
	if !ok || len(object) != 1 {
		return "", fmt.Errorf("%v is no string and no intrinsic function", value)
	}
	for name, argument := range object {
		switch name {
		case "Ref":
			if id, ok := argument.(string); ok {
				return t.reference(id, "", resolve)
			}
		case "Fn::GetAtt":
			if list, ok := argument.([]any); ok && len(list) == 2 {
				return t.reference(fmt.Sprint(list[0]), fmt.Sprint(list[1]), resolve)
			}
		case "Fn::Join":
			if list, ok := argument.([]any); ok && len(list) == 2 {
				return t.join(list[0], list[1], resolve)
			}
		case "Fn::Sub":
			if text, ok := argument.(string); ok {
				return t.substitute(text, resolve)
			}
		}
		return "", fmt.Errorf("%s of this form is not read: %v", name, argument)
	}
	return "", nil // one key, handled above
}

func (t *Template) reference(id, attribute string, resolve Resolve) (string, error) {
	if text, ok := pseudo[id]; ok && attribute == "" {
		return text, nil
	}
	r, ok := t.Resources[id]
	if !ok {
		return "", fmt.Errorf("%s is no resource of the template", id)
	}
	text, err := resolve(r, attribute)
	if err != nil {
		return "", fmt.Errorf("%s %s %s: %w", r.Type, id, attribute, err)
	}
	return text, nil
}

func (t *Template) join(delimiter, list any, resolve Resolve) (string, error) {
	values, ok := list.([]any)
	if !ok {
		return "", fmt.Errorf("Fn::Join of %v: a list expected", list)
	}
	parts := make([]string, len(values))
	for i, value := range values {
		var err error
		if parts[i], err = t.text(value, resolve); err != nil {
			return "", err
		}
	}
	return strings.Join(parts, fmt.Sprint(delimiter)), nil
}

var placeholder = regexp.MustCompile(`\$\{[^!}][^}]*\}`)

func (t *Template) substitute(text string, resolve Resolve) (string, error) {
	var failed error
	text = placeholder.ReplaceAllStringFunc(text, func(part string) string {
		id, attribute, _ := strings.Cut(part[2:len(part)-1], ".")
		value, err := t.reference(id, attribute, resolve)
		if err != nil {
			failed = err
		}
		return value
	})
	return strings.ReplaceAll(text, "${!", "${"), failed
}
