{{- define "sharing-affinity.operatorArgs" -}}
- run
{{- if .Values.operator.featureGates }}
{{- $gates := list }}
{{- range $name, $on := .Values.operator.featureGates }}
{{- $gates = append $gates (printf "%s=%t" $name $on) }}
{{- end }}
- {{ printf "--feature-gates=%s" (join "," $gates) }}
{{- end }}
{{- range .Values.operator.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "sharing-affinity.webhookArgs" -}}
- webhook
{{- range .Values.webhook.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
