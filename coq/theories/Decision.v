(** * A total decision procedure (T4)

    Recursion on the proof that a configuration terminates turns the machine into a total function.
    [match_all] returns all answers, in order; [match_fn] stops at the first. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Soundness Completeness Enumeration Termination.

Section Decision.
Context {Δ : Domain} {T : Type} {Σ : Structure T} {Z : Sized T}.

(** ** All answers, and the first answer, of a terminating configuration *)

Definition terminating_inv (c : config T) (H : terminating c) :
    forall c', In c' (expand c) -> terminating c' :=
  match H with terminating_intro _ h => h end.

(** The recursion over the list of alternatives carries the proof that they are alternatives of [c]:
    only then is the recursive call on a subproof of [H]. *)
Fixpoint solve (c : config T) (H : terminating c) {struct H} : list (store T) :=
  match snd c with
  | [] => [fst c]
  | _ =>
      (fix go (cs : list (config T)) :
           (forall c', In c' cs -> In c' (expand c)) -> list (store T) :=
         match cs with
         | [] => fun _ => []
         | c' :: cs => fun i =>
             solve c' (terminating_inv c H c' (i c' (or_introl eq_refl)))
             ++ go cs (fun c'' j => i c'' (or_intror j))
         end) (expand c) (fun _ j => j)
  end.

Fixpoint solve_first (c : config T) (H : terminating c) {struct H} : option (store T) :=
  match snd c with
  | [] => Some (fst c)
  | _ =>
      (fix go (cs : list (config T)) :
           (forall c', In c' cs -> In c' (expand c)) -> option (store T) :=
         match cs with
         | [] => fun _ => None
         | c' :: cs => fun i =>
             match solve_first c' (terminating_inv c H c' (i c' (or_introl eq_refl))) with
             | Some σ => Some σ
             | None => go cs (fun c'' j => i c'' (or_intror j))
             end
         end) (expand c) (fun _ j => j)
  end.

(** [solve] is the machine.  The proof is by induction on a second proof [H0] of termination, since
    the first one is what [solve] computes with. *)
Lemma solve_answers c (H0 : terminating c) :
  forall (H : terminating c) stk o, stk ⇓ o -> c :: stk ⇓ solve c H ++ o.
Proof.
  induction H0 as [c _ IH]. intros [h] stk o R. destruct c as [σ [| a k]].
  { simpl. now constructor. }
  apply answers_step; [reflexivity |]. cbn [step]. cbn -[expand].
  match goal with
  | |- _ ⇓ ?go (expand _) _ ++ o =>
      assert (X : forall cs i, cs ++ stk ⇓ go cs i ++ o); [| apply X]
  end.
  induction cs as [| c cs IHcs]; intros i; [exact R |]. rewrite <- app_assoc. cbn [app].
  apply IH; [apply i; now left |]. apply IHcs.
Qed.

Lemma solve_first_head c (H0 : terminating c) :
  forall H : terminating c, solve_first c H = hd_error (solve c H).
Proof.
  induction H0 as [c _ IH]. intros [h]. destruct c as [σ [| a k]]; [reflexivity |].
  cbn -[expand hd_error].
  match goal with
  | |- ?go1 _ _ = hd_error (?go _ _) =>
      assert (X : forall cs (i : forall c', In c' cs -> In c' (expand (σ, a :: k))),
                    go1 cs i = hd_error (go cs i)); [| apply X]
  end.
  induction cs as [| c cs IHcs]; intros i; [reflexivity |].
  rewrite IH by (apply i; now left).
  destruct (solve c _) as [| σ' o]; cbn [app hd_error]; auto.
Qed.

(** ** The matcher *)

Definition match_all (p : pattern) (t : T) (G : guarded p = true) : list (store T) :=
  solve _ (guarded_terminating p t G).

Definition match_fn (p : pattern) (t : T) (G : guarded p = true) : option (store T) :=
  solve_first _ (guarded_terminating p t G).

Theorem match_all_answers p t G : init p t ⇓ match_all p t G.
Proof.
  unfold match_all. rewrite <- (app_nil_r (solve _ _)).
  apply solve_answers; [now apply guarded_terminating | constructor].
Qed.

(** It returns the first answer of [match_all]. *)
Theorem match_fn_first p t G : match_fn p t G = hd_error (match_all p t G).
Proof. now apply solve_first_head, guarded_terminating. Qed.

Theorem match_fn_sound p t G σ : match_fn p t G = Some σ -> [] ⊢ p @ theta σ ≈ t.
Proof.
  rewrite match_fn_first. intros E.
  eapply answers_sound; [apply (match_all_answers p t G) | | apply extends_refl].
  destruct (match_all p t G); [discriminate |]. injection E as ->. now left.
Qed.

Theorem match_fn_complete p t G :
  wf p = true -> (match_fn p t G <> None <-> exists θ, [] ⊢ p @ θ ≈ t).
Proof.
  intros W. split.
  - destruct (match_fn p t G) as [σ |] eqn:E; [| congruence]. intros _.
    exists (theta σ). eapply match_fn_sound; eauto.
  - intros [θ M]. rewrite match_fn_first.
    destruct (answers_complete p t _ θ W (match_all_answers p t G) M) as (σ & I & _).
    destruct (match_all p t G); [destruct I | discriminate].
Qed.

(** Whether a well-formed and guarded pattern matches is decidable. *)
Corollary match_decidable p t :
  wf p = true -> guarded p = true ->
  {exists θ, [] ⊢ p @ θ ≈ t} + {~ exists θ, [] ⊢ p @ θ ≈ t}.
Proof.
  intros W G. pose proof (match_fn_complete p t G W) as H.
  destruct (match_fn p t G) as [σ |]; [left | right].
  - apply H. discriminate.
  - intros M. now apply H in M.
Qed.
End Decision.
